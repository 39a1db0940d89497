"""Several readings in one pass over memory, for tensors on a CPU; see `passes`."""
