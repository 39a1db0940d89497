"""Controlled comparisons from snapshots: one file, one experiment."""
