"""The command line of the launcher."""
