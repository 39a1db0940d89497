"""Measured quantities: one file, one signal (or one pass that yields several)."""
