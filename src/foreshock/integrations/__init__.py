"""Thin drivers of the Guard for other frameworks."""
