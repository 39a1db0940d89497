"""Foreshock in other people's loops: one framework a file, each a thin driver of the Guard."""
