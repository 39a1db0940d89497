"""The command line: one file, one command."""
