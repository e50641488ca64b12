"""The servers that can be deployed: each with its own files, ports and program."""
