"""Root causes that weigh evidence: one file, one cause."""
