"""Looks at a case: one file, one question or several that share the looking."""
