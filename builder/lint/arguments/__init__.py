"""Parses the words of a command into options, in the dialect of its engine."""
