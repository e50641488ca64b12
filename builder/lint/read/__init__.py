"""Readers: the text of a file becomes records. No release is known here."""
