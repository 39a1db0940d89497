"""The contracts: pure values and pure functions; no torch, no I/O, no clock, no environment."""
