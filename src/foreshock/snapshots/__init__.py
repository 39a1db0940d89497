"""Full-state capture: memory and disk."""
