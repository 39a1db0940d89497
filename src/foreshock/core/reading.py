"""A reading: one measured value, and how a number travels through JSON."""

import math
from typing import Any, NamedTuple

from foreshock.core.names import split_series

_MAX_WHOLE = 1 << 53
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Reading(NamedTuple):
    """One value of one signal; NaN and Inf are legal values, not accidents.

    `attempt` rises at every rollback and every resume, since a step number alone
    is not unique: after a rollback the same step is trained again.

    >>> Reading(1, 70, "grad_norm", "blocks.3.attn", 0.25).series
    'grad_norm/blocks.3.attn'
    """

    attempt: int
    step: int
    signal: str
    scope: str
    value: float

    @property
    def series(self) -> str:
        """The name of the series that this reading belongs to, `signal/scope`."""
        return f"{self.signal}/{self.scope}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object; a non-finite value is written as a string."""
        return {
            "attempt": self.attempt,
            "step": self.step,
            "series": self.series,
            "value": json_number(self.value),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Reading":
        """Undo `to_json`."""
        signal, scope = split_series(fields["series"])
        value = from_json_number(fields["value"])
        attempt, step = (from_json_whole(fields[key], 1 << 62) for key in ("attempt", "step"))
        return cls(attempt, step, signal, scope, value)


def json_number(value: float) -> float | str:
    """Return `value` as strict JSON can hold it: NaN and Inf become strings.

    `jq` turns a bare NaN into null and Python's `json` writes one by default, so
    that a broken reading would look like a missing one.

    >>> json_number(float("nan")), json_number(float("-inf")), json_number(2.5)
    ('NaN', '-Infinity', 2.5)
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def from_json_number(value: object) -> float:
    """Undo `json_number`.

    Raises:
        ValueError: `value` is neither a number that a float holds nor one of the strings.

    >>> from_json_number("-Infinity")
    -inf
    """
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise ValueError(f"expected a number, 'NaN', 'Infinity' or '-Infinity', got {value!r:.80}")


def from_json_whole(value: object, limit: int = _MAX_WHOLE) -> int:
    """The step, attempt or position that a field holds.

    Raises:
        ValueError: it is not a whole number, or none that a run reaches.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < limit:
        return value
    raise ValueError(f"expected a whole number, got {value!r:.80}")


def from_json_text(value: object) -> str:
    """The text that a field holds.

    Raises:
        ValueError: it is not a string.
    """
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a text, got {value!r:.80}")
