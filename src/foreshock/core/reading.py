"""A reading: one measured value, the mark of one that is absent, and numbers in JSON."""

import math
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from foreshock.core.names import split_series

ABSENT: Final = cast("np.float32", np.array(0x7FC5EED0, np.uint32).view(np.float32)[()])
"""In a float32 array: there is no reading here, because the signal was not due at this step.

A quiet NaN with a payload of its own, so that arithmetic treats it as NaN and only its bits
tell it from a NaN that was measured. Arithmetic and conversion may change the bits: ask
`is_absent` first. No source: our choice; no hardware or library makes this NaN.
"""

_ABSENT_BITS: Final = np.uint32(0x7FC5EED0)

_MAX_WHOLE = 1 << 53
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def is_absent(values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Where a float32 array of any shape holds `ABSENT`, exactly by the bits.

    Raises:
        TypeError: the array is not float32, so that the bits are gone already.

    >>> is_absent(np.array([1.0, np.nan, ABSENT], np.float32)).tolist()
    [False, False, True]
    """
    if values.dtype != np.float32:
        raise TypeError(f"absent values are marked in float32 only, got {values.dtype}")
    return values.view(np.uint32) == _ABSENT_BITS


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
