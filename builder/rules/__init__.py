"""What is legal for an engine release: options, constraints and the vulnerability policy."""
