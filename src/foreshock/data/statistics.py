"""What a sample looks like, and how one group of samples differs from another.

Evidence for a diagnosis: computed for the samples of an incident's window and for healthy
ones before it, never on the hot path.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.repetition import repeated_share
from foreshock.core.text import non_text_share, replacement_share, text_of

REPEATED_COPIES = 3
"""Copies in a row that count as repetition; two would count every double letter."""

_FLOORS = {"length": 1.0, "entropy_bits": 0.05}  # one token; the differences that matter
_SHARE_FLOOR = 0.01


@dataclass(frozen=True, kw_only=True)
class SampleFacts:
    """Measured facts of one sample; None is "cannot be told", not zero.

    Attributes:
        length: tokens.
        unique_share: distinct tokens / length.
        entropy_bits: Shannon entropy of the token histogram, at most log2(length).
        repeated_ngram_share: positions in 3 or more copies in a row of a 1- to 13-gram.
        replacement_share: UNK tokens where `unk_id` is given, else U+FFFD in the text.
        high_byte_share: bytes of 0x80 and above in the UTF-8 text.
        non_text_share: see `core.text.non_text_share`.
    """

    length: int
    unique_share: float
    entropy_bits: float
    repeated_ngram_share: float
    replacement_share: float | None = None
    high_byte_share: float | None = None
    non_text_share: float | None = None


class FactShift(NamedTuple):
    """How one fact differs between a window and its reference.

    Attributes:
        fact: name of a field of `SampleFacts`.
        value: where the two differ most.
        above: whether the window has more samples above it, else below it.
        window_share: share of the window's samples on that side of it.
        reference_share: share of the reference's samples there.
        p_value: probability of such a difference between samples of one distribution; a bound.
    """

    fact: str
    value: float
    above: bool
    window_share: float
    reference_share: float
    p_value: float

    @property
    def moved_share(self) -> float:
        """Share of the samples that moved: the Kolmogorov-Smirnov distance on one side."""
        return self.window_share - self.reference_share


def sample_facts(
    tokens: NDArray[np.integer],
    *,
    text: str | None = None,
    unk_id: int | None = None,
    tokens_are_bytes: bool = False,
) -> SampleFacts:
    """Measure one sample; an empty one has length 0 and every share 0.

    Args:
        tokens: `[T]` integers.
        text: the sample as text, where known.
        unk_id: the tokenizer's UNK id.
        tokens_are_bytes: tokens are the bytes of a byte-level model; values outside 0 to
            255 are special tokens, which the text facts leave out.

    >>> facts = sample_facts(np.array([1, 1, 1, 1, 2, 3, 4, 5]))
    >>> facts.unique_share, facts.entropy_bits, facts.repeated_ngram_share
    (0.625, 2.0, 0.5)
    >>> facts.replacement_share is None
    True
    """
    length = len(tokens)
    _, counts = np.unique(tokens, return_counts=True)
    shares = counts / max(length, 1)
    text = text_of(tokens, text, tokens_are_bytes)
    replaced = None if text is None else replacement_share(text)
    if unk_id is not None:
        replaced = np.count_nonzero(tokens == unk_id) / max(length, 1)
    high = None
    if text is not None:
        encoded = np.frombuffer(text.encode(errors="surrogatepass"), dtype=np.uint8)
        high = np.count_nonzero(encoded >= 0x80) / max(len(encoded), 1)
    return SampleFacts(
        length=length,
        unique_share=len(counts) / max(length, 1),
        entropy_bits=float(-(shares * np.log2(shares)).sum()) + 0.0,  # + 0.0: no "-0.0"
        repeated_ngram_share=repeated_share(tokens, min_repeats=REPEATED_COPIES),
        replacement_share=replaced,
        high_byte_share=high,
        non_text_share=None if text is None else non_text_share(text),
    )


def compare(window: Sequence[SampleFacts], reference: Sequence[SampleFacts]) -> list[FactShift]:
    """Return the largest shift of every fact that both sides know, the largest first.

    The share of samples that moved, not how far a median did: of a broken shard a third is enough
    to be seen, and what moves it need not be the same in all of its samples. Distances are
    one-sided, up and down, and the larger is told. A fact must move by more than a floor (1 token,
    0.05 bits, 0.01 of a share): what is less is real, and of no consequence.

    Fourteen distances are taken at once, so that the smallest p-value is to be read as 14 times
    what it says.

    Returns:
        Nothing if either side is empty. A fact unknown (None) in a sample is compared over the
        samples that know it.

    >>> healthy = [sample_facts(np.arange(i, i + 64)) for i in range(10)]
    >>> stuck = [sample_facts(np.zeros(64, dtype=int))] * 3
    >>> shift = compare(stuck, healthy)[0]
    >>> shift.fact, shift.above, shift.value, shift.window_share, shift.reference_share
    ('unique_share', False, 0.015625, 1.0, 0.0)

    Reference: Smirnov (1939); exp(-2 D^2 mn/(m+n)) is the asymptotic tail, above the exact one.
    No source for the floors: our choice, because they are small against what a fault does.
    """
    shifts: list[FactShift] = []
    for field in fields(SampleFacts):
        theirs, ours = _known(reference, field.name), _known(window, field.name)
        if len(ours) and len(theirs):
            floor = _FLOORS.get(field.name, _SHARE_FLOOR)
            up, down = _moved(ours, theirs, floor), _moved(-ours, -theirs, floor)
            above = up[0] - up[1] >= down[0] - down[1]
            here, before, value = up if above else down
            shifts.append(
                FactShift(
                    fact=field.name,
                    value=value if above else -value,
                    above=above,
                    window_share=here,
                    reference_share=before,
                    p_value=math.exp(-2 * _pairs(len(ours), len(theirs)) * (here - before) ** 2),
                )
            )
    return sorted(shifts, key=lambda shift: -shift.moved_share)


def smallest_shift(num_window: int, num_reference: int, p_value: float) -> float:
    """The moved share that has this p-value: a smaller one does not stand out. May exceed 1.

    >>> round(smallest_shift(16, 256, 1e-4), 2)
    0.55
    """
    return math.sqrt(-math.log(p_value) / (2 * _pairs(num_window, num_reference)))


def _pairs(num_window: int, num_reference: int) -> float:
    return num_window * num_reference / (num_window + num_reference)


def _moved(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], floor: float
) -> tuple[float, float, float]:
    """Shares of ours and theirs at and above the value where ours, less a floor, lead most."""
    values = np.unique(ours)
    here = np.searchsorted(np.sort(ours), values, side="left") / len(ours)
    before = np.searchsorted(np.sort(theirs), values - floor, side="left") / len(theirs)
    best = int(np.argmax(before - here))
    return float(1 - here[best]), float(1 - before[best]), float(values[best])


def _known(facts: Sequence[SampleFacts], name: str) -> NDArray[np.float64]:
    values = [getattr(each, name) for each in facts]
    return np.array([value for value in values if value is not None], dtype=np.float64)
