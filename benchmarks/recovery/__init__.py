"""Recovery under kills, damage and full disks, what it costs, and what it saves.

`python -m benchmarks.recovery` runs it; see `__main__`.
"""
