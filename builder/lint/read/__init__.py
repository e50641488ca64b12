"""Readers turn the text of a file into records. They do not depend on an engine release."""
