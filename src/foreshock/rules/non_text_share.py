"""Rejects binary data, broken encodings and mojibake."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from foreshock.core.errors import ConfigError
from foreshock.core.rule import Rule, Sample, Tokens, learned_share
from foreshock.core.text import non_text_shares, text_of

_USUAL: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class NonTextShare(Rule):
    """Reject a sample of which more than `max_share` of the characters are not text.

    Not text are: undecodable bytes (U+FFFD), control characters other than white space,
    surrogates, private use, noncharacters, and UTF-8 read as Latin-1 or Windows-1252
    ("naÃ¯ve"). Letters of every script, symbols and emoji are text; so is a wrong but valid
    single-byte decoding (Cyrillic read as Latin letters), which this rule cannot see.

    Args:
        max_share: limit in [0, 1); None is 0.1, or more where a stream's first
            samples lie higher (see `core.rule.learned_share`). Raised, half-broken pages train;
            lowered, terminal logs with escape codes and pages that quote a few broken words are
            rejected.
        tokens_are_bytes: tokens are the bytes 0 to 255 of a byte-level model (larger values
            are special tokens), so the text is read from them where none is given.

    Needs text or bytes; else it cannot judge. Empty samples pass.

    Raises:
        ConfigError: `max_share` outside [0, 1).

    >>> rule = NonTextShare()
    >>> rule.judge(None, "привет".encode().decode("latin-1"))
    'non-text share 1 > 0.1'
    >>> rule.judge(None, "привет, 世界, naïve café") is None
    True

    No source for 0.1: our choice, because of 294 000 windows of 128 to 1024 bytes (see
    `ReplacementShare`) it rejected 4, all from a test file of Python's that holds broken
    mail on purpose, while random bytes come to 0.55 and mojibake of a non-Latin text to nearly 1.
    Cost, in a batch of 16 on one core (`benchmarks/data_rules.py`): about 10 µs for 1024 bytes.
    """

    name: ClassVar[str] = "non_text_share"

    max_share: float | None = None
    tokens_are_bytes: bool = False

    def __post_init__(self) -> None:
        if self.max_share is not None and not 0 <= self.max_share < 1:
            raise ConfigError(f"max_share={self.max_share}: must be at least 0 and below 1")

    def can_judge(self, tokens: Tokens | None, text: str | None) -> bool:
        return text is not None or (tokens is not None and self.tokens_are_bytes)

    def judge(self, tokens: Tokens | None, text: str | None) -> str | None:
        return self.judge_batch([Sample(tokens, text)])[0]

    def judge_batch(self, samples: Sequence[Sample]) -> list[str | None]:
        limit = _USUAL if self.max_share is None else self.max_share
        return [
            f"non-text share {share:.3g} > {limit:g}" if share > limit else None
            for share in self._shares(samples)
        ]

    def learned(self, samples: Sequence[Sample]) -> Self:
        if self.max_share is not None:
            return self
        known = [one for one in samples if self.can_judge_sample(one)]
        return replace(self, max_share=learned_share(self._shares(known), _USUAL))

    def _shares(self, samples: Sequence[Sample]) -> list[float]:
        """Of each sample; 0 where it cannot be told."""
        texts = [text_of(one.tokens, one.text, self.tokens_are_bytes) or "" for one in samples]
        return non_text_shares(texts).tolist()
