"""The resumable stream, its quarantine ledger, and the statistics of a batch."""
