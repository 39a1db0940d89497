"""Is the cause told that was injected: an injection matrix, and what it comes to."""
