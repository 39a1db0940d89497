"""Rejects samples in which a tokenizer or a decoder gave up on too much."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.rule import Rule, Sample, Tokens, learned_share
from foreshock.core.text import replacement_share, text_of

_USUAL: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class ReplacementShare(Rule):
    """Reject a sample whose share of U+FFFD or of the UNK token exceeds `max_share`.

    share = count / length, over the characters for U+FFFD and over the tokens for UNK; each
    that can be measured is held to the limit. Up to three U+FFFD at either end are left out:
    they come from cutting a byte stream inside a character.

    Args:
        max_share: limit in [0, 1); None is 0.05, or more where a stream's first
            samples lie higher (see `core.rule.learned_share`). Raised, more damage trains; lowered,
            documents *about* encodings go, and below 1 / length a single stray byte is enough.
        unk_id: the tokenizer's UNK id; None if it has none.
        tokens_are_bytes: tokens are the bytes 0 to 255 of a byte-level model (larger values
            are special tokens), so the text is read from them where none is given.

    Needs text, bytes, or tokens with `unk_id`; else it cannot judge. Empty samples pass.

    Raises:
        ConfigError: `max_share` outside [0, 1).

    >>> rule = ReplacementShare(unk_id=0)
    >>> rule.judge(np.array([5, 0, 0, 7]), None)
    'UNK share 0.5 > 0.05'
    >>> rule.judge(np.array([5, 6, 8, 7]), "fine") is None
    True

    No source for 0.05: our choice, because it rejected none of 294 000 windows of 128 to 1024
    bytes cut from Python's standard library, English prose (Debian's licence texts, Perl's
    manuals), Markdown, JSON, and help texts in 36 languages, while a non-Latin text
    that went through a wrong decoder stands far above it. Cost: 3 µs for 1024
    bytes (`benchmarks/data_rules.py`).
    """

    name: ClassVar[str] = "replacement_share"

    max_share: float | None = None
    unk_id: int | None = None
    tokens_are_bytes: bool = False

    def __post_init__(self) -> None:
        if self.max_share is not None and not 0 <= self.max_share < 1:
            raise ConfigError(f"max_share={self.max_share}: must be at least 0 and below 1")

    def can_judge(self, tokens: Tokens | None, text: str | None) -> bool:
        can_read_tokens = self.unk_id is not None or self.tokens_are_bytes
        return text is not None or (tokens is not None and can_read_tokens)

    def judge(self, tokens: Tokens | None, text: str | None) -> str | None:
        limit = _USUAL if self.max_share is None else self.max_share
        for what, share in self._shares(tokens, text):
            if share > limit:
                return f"{what} share {share:.3g} > {limit:g}"
        return None

    def learned(self, samples: Sequence[Sample]) -> Self:
        if self.max_share is not None:
            return self
        known = [one for one in samples if self.can_judge_sample(one)]
        shares = [max(share for _, share in self._shares(one.tokens, one.text)) for one in known]
        return replace(self, max_share=learned_share(shares, _USUAL))

    def _shares(self, tokens: Tokens | None, text: str | None) -> list[tuple[str, float]]:
        """What can be measured, by what it is a share of."""
        found: list[tuple[str, float]] = []
        if tokens is not None and self.unk_id is not None:
            num = np.count_nonzero(tokens == self.unk_id)
            found.append(("UNK", num / max(len(tokens), 1)))
        text = text_of(tokens, text, self.tokens_are_bytes)
        if text is not None:
            found.append(("U+FFFD", replacement_share(text)))
        return found
