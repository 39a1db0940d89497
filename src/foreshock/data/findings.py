"""What stands out in the samples of an episode, as evidence for a diagnosis."""

from collections import Counter
from collections.abc import Sequence

from foreshock.core.case import BatchFinding
from foreshock.core.errors import StreamError
from foreshock.data.statistics import SampleFacts, compare, sample_facts, smallest_shift
from foreshock.data.stream import Stream

_MAX_SAMPLES = 256
_FEW_SAMPLES = 32
_NEW_SOURCE_SHARE = 0.2
_MOVED_SHARE = 0.25
_P_VALUE = 1e-4
_STRENGTH = 2.0
_SOURCE_STRENGTH = 1.5


def batch_findings(
    stream: Stream, window: Sequence[int], reference: Sequence[int]
) -> list[BatchFinding] | None:
    """Compare the samples at `window` with those at `reference` (raw stream positions).

    A finding is a text statistic that has moved in at least a quarter of the window's samples,
    where chance would move as many once in 10,000 times, or a source that makes up at least
    20 % of the window and was not in the reference at all.

    Returns:
        Findings with their strength in log-odds; empty if nothing stands out, or, of few
        samples, one of negative strength that says so; None if the samples cannot be looked at
        (no tokens, too few of them, or the dataset failed).

    No source: our choice, because a lone threshold on chance flags harmless drifts of a mixture.
    """
    window, reference = _spread(window), list(reference)[-_MAX_SAMPLES:]
    if len(window) == 0 or len(reference) < _FEW_SAMPLES:
        return None
    findings = _new_sources(stream, window, reference)
    try:
        facts = [[_facts(stream, position) for position in part] for part in (window, reference)]
    except StreamError:
        return findings or None
    known = [[one for one in part if one is not None] for part in facts]
    if not known[0] or len(known[1]) < _FEW_SAMPLES:
        return findings or None
    for shift in compare(known[0], known[1]):
        if shift.moved_share >= _MOVED_SHARE and shift.p_value <= _P_VALUE:
            side = "or more" if shift.above else "or less"
            findings.append(
                BatchFinding(
                    statement=f"{shift.fact} is {shift.value:.3g} {side} in "
                    f"{shift.window_share:.0%} of the samples, before in "
                    f"{shift.reference_share:.0%}",
                    strength=_STRENGTH,
                )
            )
    return findings or _nothing_seen(len(known[0]), len(known[1]))


def _spread(window: Sequence[int]) -> list[int]:
    """As many as can be looked at, evenly: what did harm may lie at the onset, or at the end."""
    if len(window) <= _MAX_SAMPLES:
        return list(window)
    return [window[place * len(window) // _MAX_SAMPLES] for place in range(_MAX_SAMPLES)]


def _nothing_seen(num_samples: int, num_before: int) -> list[BatchFinding]:
    """What it says that nothing stands out: the less, the fewer samples there are."""
    smallest = smallest_shift(num_samples, num_before, _P_VALUE)
    if smallest <= _MOVED_SHARE:
        return []
    return [
        BatchFinding(
            statement=f"the {num_samples} samples look like those before them, as far as so few "
            f"show: it takes {min(1.0, smallest):.0%} of them to stand out",
            strength=-_STRENGTH * max(0.0, 1 - smallest) / (1 - _MOVED_SHARE),
        )
    ]


def _new_sources(
    stream: Stream, window: Sequence[int], reference: Sequence[int]
) -> list[BatchFinding]:
    now = Counter(stream.order.locate(position).source for position in window)
    before = Counter(stream.order.locate(position).source for position in reference)
    return [
        BatchFinding(
            statement=f"source {source!r} makes up {count / len(window):.0%} of the samples and "
            f"was in none of the {len(reference)} before",
            strength=_SOURCE_STRENGTH,
        )
        for source, count in now.items()
        if source not in before and count / len(window) >= _NEW_SOURCE_SHARE
    ]


def _facts(stream: Stream, position: int) -> SampleFacts | None:
    tokens = stream.tokens(position)
    return None if tokens is None else sample_facts(tokens, text=stream.text(position))
