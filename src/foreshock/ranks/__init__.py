"""What several ranks know together: digests, replicas, the canary, one collective a step."""
