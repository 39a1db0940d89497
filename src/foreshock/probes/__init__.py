"""Fixed measurements of a capability: one file, one probe."""
