"""Makes what a run directory holds harmless to show, wherever it came from."""

import math
import re
from typing import Any, Final, cast

from foreshock.core.reading import from_json_number, from_json_whole, json_number

MAX_LENGTH: Final = 4000
"""Characters of one string. Our choice: a handover note fits, a flood does not."""

_MAX_DEPTH: Final = 24
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def clean_text(text: str) -> str:
    r"""The text without what a terminal or a file would choke on, and of bounded length.

    Control characters (which drive terminals), lone surrogates (which no file takes) and
    overrides of the writing direction (which show one thing and mean another) become "\ufffd".
    Escaping for HTML is the page's task.

    >>> clean_text("red \x1b[31m ink")
    'red \ufffd[31m ink'
    """
    text = _UNSAFE.sub("\ufffd", text[: MAX_LENGTH + 1])
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"


def clean(value: Any, depth: int = 0) -> Any:
    """The same JSON value with every string in it cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if depth >= _MAX_DEPTH and isinstance(value, dict | list):
        return "…"
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {clean_text(key): clean(item, depth + 1) for key, item in fields.items()}
    if isinstance(value, list):
        return [clean(item, depth + 1) for item in cast("list[Any]", value)]
    return value


whole = from_json_whole


def real(value: object) -> float:
    """The finite number that a field holds.

    Raises:
        ValueError: it is not a finite number.
    """
    try:
        found = from_json_number(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"expected a finite number, got {value!r:.80}")
    return found


def strict(value: Any) -> Any:
    """The same value as strict JSON can hold it: NaN and Inf become strings."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
