"""What watching costs a step: Foreshock, a naive monitor and other tools, interleaved.

`python -m benchmarks.overhead` runs it; see `__main__`.
"""
