"""Controlled experiments: one file, one experiment."""
