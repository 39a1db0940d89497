"""Online data rules: what a sample must pass before it trains; one rule a file."""
