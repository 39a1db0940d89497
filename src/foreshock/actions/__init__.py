"""Commands on the training run: one file, one action."""
