"""Samples that are the same as others: trained shortly before, or copies of each other."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

from foreshock.core.case import BatchFinding
from foreshock.data.entry import Key
from foreshock.data.statistics import smallest_shift

MOVED_SHARE: Final = 0.25
P_VALUE: Final = 1e-4
STRENGTH: Final = 2.0


def stands_out(now: float, num_now: int, then: float, num_then: int) -> bool:
    """Whether a share has risen by a quarter, and by more than chance would in so few samples."""
    return now - then >= max(MOVED_SHARE, smallest_shift(num_now, num_then, P_VALUE))


def met_by_chance(window: Sequence[Key], before: Sequence[Key], sizes: Mapping[str, int]) -> float:
    """Share of the window that would have been trained before if samples were drawn at random.

    It is large where data sets are small: then a sample that comes again says nothing. Of a
    window before itself, the share that comes twice in it, or more. A source whose size nobody
    knows has no end.
    """
    known = Counter(source for source, _ in set(before))
    shares = (known[source] / sizes[source] for source, _ in window if source in sizes)
    return sum(shares) / len(window)


def seen_before(
    window: Sequence[Hashable], before: Sequence[Hashable], by_chance: float
) -> Iterator[BatchFinding]:
    """Samples that were trained shortly before, more than by chance and more than is usual.

    Usual is what the last samples before the window, as many as it has, had in common with
    those before them.
    """
    past = before[: max(len(before) // 2, len(before) - len(window))]
    recent = before[len(past) :]
    now, then = _num_known(window, before), _num_known(recent, past)
    usual = max(then / len(recent), by_chance)
    if stands_out(now / len(window), len(window), usual, len(before)):
        yield BatchFinding(
            statement=f"{now / len(window):.0%} of the samples were trained among the "
            f"{len(before)} before, where {usual:.0%} would be usual",
            strength=STRENGTH,
            fact="seen_before",
        )


def _num_known(samples: Sequence[Hashable], before: Sequence[Hashable]) -> int:
    known = set(before)
    return sum(one in known for one in samples)


def copies(
    window: Sequence[bytes], before: Sequence[bytes], by_chance: float
) -> Iterator[BatchFinding]:
    """Samples that are copies of another of the window, more than there were among as many.

    `by_chance`: share that comes twice in so few samples of so small a data set.
    """
    recent = before[-len(window) :]
    now, then = _num_twins(window), _num_twins(recent)
    usual = max(then / len(recent), by_chance)
    if stands_out(now / len(window), len(window), usual, len(recent)):
        yield BatchFinding(
            statement=f"{now / len(window):.0%} of the samples are copies of each other, where "
            f"{usual:.0%} would be usual",
            strength=STRENGTH,
            fact="alike",
        )


def _num_twins(samples: Sequence[bytes]) -> int:
    return sum(count for count in Counter(samples).values() if count > 1)
