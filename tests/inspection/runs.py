"""Logs made for the tests: a run's signals as a reader would hand them over."""

from collections.abc import Mapping, Sequence

import numpy as np

from foreshock.core.log import EventKind, Log
from foreshock.core.log_builder import LogBuilder
from foreshock.inspection.finding import Inspection
from foreshock.inspection.inspect import inspect_log


def log_of(
    signals: Mapping[str, Sequence[float]],
    *,
    first: int = 1,
    interval: int = 1,
    steps: Sequence[int] | None = None,
    events: Mapping[int, tuple[EventKind, str]] | None = None,
) -> Log:
    """A log with one row a reading; `events` stand before the row of their number."""
    builder = LogBuilder()
    length = max(len(values) for values in signals.values())
    for row in range(length):
        for at, (kind, signal) in (events or {}).items():
            if at == row:
                builder.event(kind, line=row + 1, text=f"{kind} {signal}", signal=signal)
        pairs = [(name, float(values[row])) for name, values in signals.items()]
        step = steps[row] if steps is not None else first + row * interval
        builder.row(step, pairs, line=row + 1)
    return builder.finish(path="run.log", format="test", title="a test")


def inspected(signals: Mapping[str, Sequence[float]], **more: object) -> Inspection:
    """The inspection of such a log."""
    return inspect_log(log_of(signals, **more))  # type: ignore[arg-type]


def falling(num_readings: int, *, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    """A healthy loss: it falls from 9 towards 2, with noise as a share of it."""
    rng = np.random.default_rng(seed)
    curve = 2 + 7 / (1 + np.arange(num_readings) / 20)
    return curve * (1 + noise * rng.normal(size=num_readings))


def level(num_readings: int, value: float, *, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    """A signal that stands at a value, with multiplicative noise."""
    return value * np.exp(noise * np.random.default_rng(seed).normal(size=num_readings))
