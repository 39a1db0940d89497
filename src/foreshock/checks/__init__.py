"""Preflight checks: one file, one check."""
