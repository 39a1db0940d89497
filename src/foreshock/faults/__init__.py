"""Injected failures: one file, one fault."""
