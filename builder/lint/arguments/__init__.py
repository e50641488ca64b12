"""Reads the words of a command as options, by the dialect of its engine."""
