"""The steps of rows that were printed at even distances, where only their epochs are told."""

from collections.abc import Sequence

_ROUNDING = 0.0101
"""Epochs are printed with two digits, those of the rows and that of the end. Besides, the last
step of an epoch may be smaller than the others: that makes up to one step."""

_ROUND = (1000, 500, 250, 200, 100, 50, 25, 20, 10, 5, 2, 1)


def even_steps(epochs: Sequence[float], total: int, end: float) -> list[int] | None:
    """The step of each row of a run that is over; None if that is not plain.

    Args:
        epochs: of each row, all that the run printed.
        total: steps of the run.
        end: its epoch at the end.

    >>> even_steps([0.25, 0.49, 0.74, 0.99], total=203, end=1.0)
    [50, 100, 150, 200]
    >>> even_steps([0.01, 0.5, 1.0], total=100, end=1.0)
    [1, 50, 100]
    """
    count = len(epochs)
    if count < 2 or total < count or end <= 0:
        return None
    found: list[tuple[int, list[int]]] = []
    for first in (False, True):
        evenly = count - first
        for every in range(total // (evenly + 1) + 1, total // max(evenly, 1) + 1):
            steps = [every * number for number in range(1, evenly + 1)]
            steps = [1, *steps] if first and every > 1 else steps
            if len(steps) == count and all(
                abs(epoch - end * step / total) <= _ROUNDING + end / total
                for epoch, step in zip(epochs, steps, strict=True)
            ):
                found.append((every, steps))
    if not found:
        return None
    places = [next(n for n, unit in enumerate(_ROUND) if every % unit == 0) for every, _ in found]
    best = min(places)
    return found[places.index(best)][1] if places.count(best) == 1 else None
