"""What is legal for an engine release: its options, the rules between them, and its versions."""
