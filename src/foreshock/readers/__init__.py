"""Readers of training logs: one file, one format."""
