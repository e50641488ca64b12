"""The command line of the builder: parser, verbs and what they print; nothing imports it."""
