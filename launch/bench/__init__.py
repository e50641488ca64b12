"""What users feel: load on an endpoint, and its measures."""
