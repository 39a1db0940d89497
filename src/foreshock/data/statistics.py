"""What a sample looks like, and how one group of samples differs from another.

Evidence for a diagnosis: computed for the samples of an incident's window and for healthy
ones before it, never on the hot path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.repetition import repeated_share
from foreshock.core.text import non_text_share, replacement_share, text_of

MIN_REFERENCE = 8
"""Fewer reference samples give no spread worth a z-score. No source: our choice, because the
MAD of 8 normal values is within a factor of 2 of the truth in 86 of 100 draws (simulated)."""

REPEATED_COPIES = 3
"""Copies in a row that count as repetition; two would count every double letter."""

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
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
        window_median: over the window's samples.
        reference_median: over the reference's samples.
        robust_z: difference of the medians in robust standard deviations of the reference.
        outside_share: share of window samples outside the reference's smallest to largest.
    """

    fact: str
    window_median: float
    reference_median: float
    robust_z: float
    outside_share: float


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
    """Return the shift of every fact that both sides know, the largest |robust_z| first.

    robust_z = (window median - reference median) / max(1.4826 * MAD of the reference, floor)
    with floor 1 token, 0.05 bits, or 0.01 for a share: below it a difference is real but of
    no consequence, and a constant reference would make any difference infinite.

    Seven facts are compared at once and a median over few samples is noisy, so a |robust_z|
    of 2 or 3 alone says little.

    Returns:
        Nothing if the window is empty or the reference has under `MIN_REFERENCE` samples:
        there is then no evidence either way. A fact unknown (None) in a sample is compared
        over the samples that know it, under the same limits.

    >>> healthy = [sample_facts(np.arange(i, i + 64)) for i in range(10)]
    >>> stuck = [sample_facts(np.zeros(64, dtype=int))]
    >>> [(s.fact, s.window_median, s.reference_median) for s in compare(stuck, healthy)][0]
    ('entropy_bits', 0.0, 6.0)

    No source for the floors: our choice, because they are small against what a fault does.
    """
    shifts: list[FactShift] = []
    for field in fields(SampleFacts):
        theirs, ours = _known(reference, field.name), _known(window, field.name)
        if not len(ours) or len(theirs) < MIN_REFERENCE:
            continue
        center = float(np.median(theirs))
        spread = _MAD_TO_SIGMA * float(np.median(np.abs(theirs - center)))
        median = float(np.median(ours))
        outside = (ours < theirs.min()) | (ours > theirs.max())
        shifts.append(
            FactShift(
                fact=field.name,
                window_median=median,
                reference_median=center,
                robust_z=(median - center) / max(spread, _FLOORS.get(field.name, _SHARE_FLOOR)),
                outside_share=float(outside.mean()),
            )
        )
    return sorted(shifts, key=lambda shift: -abs(shift.robust_z))


def _known(facts: Sequence[SampleFacts], name: str) -> NDArray[np.float64]:
    values = [getattr(each, name) for each in facts]
    return np.array([value for value in values if value is not None], dtype=np.float64)
