"""Methods that prevent instability: one file, one method."""
