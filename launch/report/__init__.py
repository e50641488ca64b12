"""What runs measured, on one page that a person likes to read."""
