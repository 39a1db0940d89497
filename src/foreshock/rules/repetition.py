"""Rejects samples that repeat one short n-gram over and over."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.repetition import MAX_PERIOD, repeated_share, repeated_shares
from foreshock.core.rule import Rule, Sample, Tokens, learned_share

_USUAL: Final = 0.9


@dataclass(frozen=True, kw_only=True)
class Repetition(Rule):
    """Reject a sample if back-to-back repeated n-grams cover more than `max_share` of it.

    share = positions inside a run of at least `min_repeats` copies of one n-gram of up to
    `max_period` tokens, divided by the length; see `core.repetition.repeated_share`.

    Args:
        max_share: limit in [0, 1); None is 0.9, or more where a stream's first
            samples lie higher (see `core.rule.learned_share`). Raised, more repetition trains;
            lowered, code goes first: on 128-byte windows banners and indentation alone reach 0.5
            in 2.4 % of Python and 15 % of indented JSON.
        min_repeats: copies in a row, at least 2. Raised, shorter samples escape: an n-gram
            of n tokens is seen only in samples of n * min_repeats tokens or more.
        max_period: longest n-gram, in tokens.
        min_length: shorter samples, in tokens, are not judged: a short window of ordinary
            text can lie wholly inside a banner or a table's rule.
        pad_id: the padding token, which is left out; None if there is none. Without it a
            sample that is mostly padding is rejected.

    Needs tokens or text (then characters are the tokens); else it cannot judge.

    Raises:
        ConfigError: a limit outside its range.

    >>> rule = Repetition()
    >>> rule.judge(np.tile([3, 1, 4], 40), None)
    'repeated 1- to 13-grams (>= 8 copies) cover 1 > 0.9'
    >>> rule.judge(np.arange(120), None) is None
    True

    Reference: OLMo 2 (2025), section 3.1, https://arxiv.org/abs/2501.00656: 32 copies of a
    1- to 13-gram precede gradient spikes; `Repetition(max_share=0, min_repeats=32)` is that
    rule. It suits token sequences of thousands; 8 copies make every such n-gram visible in
    128 tokens. No source for 0.9: our choice, because on windows of
    128 bytes it rejected 0.013 % of Python's standard library, 0.027 % of English prose,
    0.008 % of help texts in 36 languages and none of Markdown and JSON (banners and
    rules, all of them), and at most 0.013 % of each on 256 bytes and none on 512 and 1024.
    Known limit: C headers with wide comment boxes lose 0.66 % at 128 bytes, 0.15 % at 256.
    Cost, in a batch of 16 on one core (`benchmarks/data_rules.py`): about 40 µs for 1024 tokens,
    30 µs for 128; alone three to six times that.
    """

    name: ClassVar[str] = "repetition"

    max_share: float | None = None
    min_repeats: int = 8
    max_period: int = MAX_PERIOD
    min_length: int = 96
    pad_id: int | None = None

    def __post_init__(self) -> None:
        if self.max_share is not None and not 0 <= self.max_share < 1:
            raise ConfigError(f"max_share={self.max_share}: must be at least 0 and below 1")
        if self.min_repeats < 2:
            raise ConfigError(f"min_repeats={self.min_repeats}: must be at least 2")
        if self.max_period < 1:
            raise ConfigError(f"max_period={self.max_period}: must be at least 1")

    def can_judge(self, tokens: Tokens | None, text: str | None) -> bool:
        return tokens is not None or text is not None

    def judge(self, tokens: Tokens | None, text: str | None) -> str | None:
        counted = self._counted(tokens, text)
        if counted is None:
            return None
        share = repeated_share(counted, min_repeats=self.min_repeats, max_period=self.max_period)
        return self._why(share)

    def judge_batch(self, samples: Sequence[Sample]) -> list[str | None]:
        found: list[str | None] = [None] * len(samples)
        for place, share in self._shares(samples).items():
            found[place] = self._why(share)
        return found

    def learned(self, samples: Sequence[Sample]) -> Self:
        if self.max_share is not None:
            return self
        shares = list(self._shares(samples).values())
        return replace(self, max_share=learned_share(shares, _USUAL))

    def _why(self, share: float) -> str | None:
        limit = _USUAL if self.max_share is None else self.max_share
        if share <= limit:
            return None
        return (
            f"repeated 1- to {self.max_period}-grams (>= {self.min_repeats} copies) "
            f"cover {share:.3g} > {limit:g}"
        )

    def _counted(self, tokens: Tokens | None, text: str | None) -> Tokens | None:
        """What is looked at of a sample; None if it is too short, or there is nothing."""
        if tokens is None:
            if text is None:
                return None
            tokens = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        elif self.pad_id is not None:
            tokens = tokens[tokens != self.pad_id]
        return tokens if len(tokens) >= self.min_length else None

    def _shares(self, samples: Sequence[Sample]) -> dict[int, float]:
        """By place, of the samples that are long enough."""
        counted = [(n, self._counted(one.tokens, one.text)) for n, one in enumerate(samples)]
        known = [(place, one) for place, one in counted if one is not None]
        shares = repeated_shares(
            [one for _, one in known], min_repeats=self.min_repeats, max_period=self.max_period
        )
        return dict(zip([place for place, _ in known], shares.tolist(), strict=True))
