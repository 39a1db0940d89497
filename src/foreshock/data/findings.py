"""What stands out in the samples of an episode, as evidence for a diagnosis."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from foreshock.core.case import BatchFinding
from foreshock.core.errors import StreamError
from foreshock.data.entry import Key
from foreshock.data.sameness import (
    MOVED_SHARE,
    P_VALUE,
    STRENGTH,
    copies,
    met_by_chance,
    seen_before,
    stands_out,
)
from foreshock.data.sample import labels_of, tokens_of
from foreshock.data.statistics import (
    FactShift,
    SampleFacts,
    compare,
    sample_facts,
    smallest_shift,
)
from foreshock.data.stream import Stream

_MAX_SAMPLES = 256
_FEW_SAMPLES = 32
_NEW_SOURCE_SHARE = 0.2
_SOURCE_STRENGTH = 1.5
_ONE_SOURCE_SHARE = 0.9
_MAX_KEYS = 4096
"""Samples before the window whose names are compared; of `_MAX_SAMPLES` the tokens too."""
_IGNORE_INDEX = -100
"""`ignore_index` of torch.nn.functional.cross_entropy, as in the rule `all_masked`."""
_FACT_OF: Mapping[str, str] = MappingProxyType(
    {
        "length": "length",
        "unique_share": "diversity",
        "entropy_bits": "diversity",
        "repeated_ngram_share": "repetition",
        "replacement_share": "replacement",
        "high_byte_share": "non_text",
        "non_text_share": "non_text",
    }
)
"""By field of `SampleFacts`, the fact of a `BatchFinding`."""


class _Seen(NamedTuple):
    """What is kept of one sample: its facts, a digest of its tokens, whether labels are masked."""

    facts: SampleFacts
    digest: bytes
    masked: bool | None


def batch_findings(
    stream: Stream, window: Sequence[int], reference: Sequence[int]
) -> list[BatchFinding] | None:
    """Compare the samples at `window` with those at `reference` (raw stream positions).

    A finding is a text statistic that has moved in at least a quarter of the window's samples,
    where chance would move as many once in 10,000 times, or a source that makes up at least
    20 % of the window and was not in the reference at all; or as many samples that were trained
    shortly before, that are copies of each other, or of which no label is to be predicted; or one
    source alone, where there were several. Each bears the name of its fact.

    Returns:
        Findings with their strength in log-odds; empty if nothing stands out, or, of few
        samples, one of negative strength that says so; None if the samples cannot be looked at
        (no tokens, too few of them, or the dataset failed).

    No source: our choice, because a lone threshold on chance flags harmless drifts of a mixture.
    """
    window, before = _spread(window), list(reference)[-_MAX_KEYS:]
    reference = before[-_MAX_SAMPLES:]
    if len(window) == 0 or len(reference) < _FEW_SAMPLES:
        return None
    findings = _new_sources(stream, window, reference)
    names, known = ([_name(stream, one) for one in part] for part in (window, before))
    by_chance = met_by_chance(names, known, stream.order.sizes)
    seen = list(seen_before(names, known, by_chance))
    try:
        looked = [[_look(stream, position) for position in part] for part in (window, reference)]
    except StreamError:
        return findings + seen or None
    now, then = ([one for one in part if one is not None] for part in looked)
    if not now or len(then) < _FEW_SAMPLES:
        return findings + seen or None
    findings += [
        _told(shift)
        for shift in compare([one.facts for one in now], [one.facts for one in then])
        if shift.moved_share >= MOVED_SHARE and shift.p_value <= P_VALUE
    ]
    digests, theirs = ([one.digest for one in part] for part in (now, then))
    findings += seen or seen_before(digests, theirs, by_chance)
    findings += copies(digests, theirs, met_by_chance(names, names, stream.order.sizes))
    findings += _masked(now, then)
    return findings or _nothing_seen(len(now), len(then))


def _told(shift: FactShift) -> BatchFinding:
    """A statistic that has moved, in words."""
    side = "or more" if shift.above else "or less"
    fact = _FACT_OF[shift.fact]
    if fact == "repetition" and not shift.above:
        fact = "diversity"
    return BatchFinding(
        statement=f"{shift.fact} is {shift.value:.3g} {side} in {shift.window_share:.0%} of the "
        f"samples, before in {shift.reference_share:.0%}",
        strength=STRENGTH,
        fact=fact,
    )


def _spread(window: Sequence[int]) -> list[int]:
    """As many as can be looked at, evenly: what did harm may lie at the onset, or at the end."""
    if len(window) <= _MAX_SAMPLES:
        return list(window)
    return [window[place * len(window) // _MAX_SAMPLES] for place in range(_MAX_SAMPLES)]


def _nothing_seen(num_samples: int, num_before: int) -> list[BatchFinding]:
    """What it says that nothing stands out: the less, the fewer samples there are."""
    smallest = smallest_shift(num_samples, num_before, P_VALUE)
    if smallest <= MOVED_SHARE:
        return []
    return [
        BatchFinding(
            statement=f"the {num_samples} samples look like those before them, as far as so few "
            f"show: it takes {min(1.0, smallest):.0%} of them to stand out",
            strength=-STRENGTH * max(0.0, 1 - smallest) / (1 - MOVED_SHARE),
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
            fact="source",
        )
        for source, count in now.items()
        if source not in before and count / len(window) >= _NEW_SOURCE_SHARE
    ] + [
        BatchFinding(
            statement=f"source {source!r} alone makes up {count / len(window):.0%} of the samples, "
            f"before {before[source] / len(reference):.0%}",
            strength=_SOURCE_STRENGTH,
            fact="alike",
        )
        for source, count in now.items()
        if source in before
        and count / len(window) >= _ONE_SOURCE_SHARE
        and stands_out(
            count / len(window), len(window), before[source] / len(reference), len(reference)
        )
    ]


def _name(stream: Stream, position: int) -> Key:
    found = stream.order.locate(position)
    return found.source, found.index


def _masked(window: Sequence[_Seen], before: Sequence[_Seen]) -> Iterator[BatchFinding]:
    """Samples in which nothing is to be predicted."""
    now = [one.masked for one in window if one.masked is not None]
    then = [one.masked for one in before if one.masked is not None]
    if not now or not then:
        return
    here, there = sum(now) / len(now), sum(then) / len(then)
    if stands_out(here, len(now), there, len(then)):
        yield BatchFinding(
            statement=f"no label is to be predicted in {here:.0%} of the samples, before in "
            f"{there:.0%}",
            strength=STRENGTH,
            fact="labels_masked",
        )


def _look(stream: Stream, position: int) -> _Seen | None:
    sample = stream.sample(position)
    tokens = tokens_of(sample)
    if tokens is None:
        return None
    labels = labels_of(sample)
    return _Seen(
        facts=sample_facts(tokens, text=stream.text(position)),
        digest=hashlib.blake2b(
            np.ascontiguousarray(tokens, dtype=np.int64).tobytes(), digest_size=16
        ).digest(),
        masked=None if labels is None else bool(np.all(labels == _IGNORE_INDEX)),
    )
