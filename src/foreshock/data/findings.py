"""What stands out in the samples of an episode, as evidence for a diagnosis."""

from collections import Counter
from collections.abc import Sequence

from foreshock.core.case import BatchFinding
from foreshock.core.errors import StreamError
from foreshock.data.statistics import SampleFacts, compare, sample_facts
from foreshock.data.stream import Stream

_MAX_SAMPLES = 256
_FEW_SAMPLES = 32
_NEW_SOURCE_SHARE = 0.2
_OUTSIDE_SHARE = 0.3
_Z = 6.0
_STRENGTH = 2.0
_SOURCE_STRENGTH = 1.5


def batch_findings(
    stream: Stream, window: Sequence[int], reference: Sequence[int]
) -> list[BatchFinding] | None:
    """Compare the samples at `window` with those at `reference` (raw stream positions).

    A finding is a text statistic whose median lies 6 robust deviations away while at least
    30 % of the window's samples lie outside everything seen in the reference, or a source
    that makes up at least 20 % of the window and was not in the reference at all.

    Returns:
        Findings with their strength in log-odds; None if the samples cannot be looked at
        (no tokens, too few of them, or the dataset failed).

    No source: our choice, because a lone threshold on z flags harmless drifts of a mixture.
    """
    window, reference = list(window)[-_MAX_SAMPLES:], list(reference)[-_MAX_SAMPLES:]
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
        if abs(shift.robust_z) >= _Z and shift.outside_share >= _OUTSIDE_SHARE:
            findings.append(
                BatchFinding(
                    statement=f"{shift.fact} of the samples is {shift.window_median:.3g}, before "
                    f"{shift.reference_median:.3g}; {shift.outside_share:.0%} of them lie "
                    "outside everything seen before",
                    strength=_STRENGTH,
                )
            )
    return findings


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
