"""Numbers in text, and what the words of a log mean whatever wrote it."""

import re

from foreshock.core.log import EventKind

_EXPONENT = r"(?:[eE][-+]?\d+)?"
NUMBER = (
    rf"[-+]?(?:\d+(?:[,_]\d+)*(?:\.\d*)?{_EXPONENT}|\.\d+{_EXPONENT}"
    r"|[nN][aA][nN]|[iI]nf(?:inity)?|INF)"
)
"""A number as logs print it: thousands separators, NaN in any case, infinities."""


def number(text: str) -> float | None:
    """The number that a text spells; None if it spells none.

    >>> number("1,048.5"), number("NAN"), number("2.4E-05"), number("n/a")
    (1048.5, nan, 2.4e-05, None)
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(text.replace(",", "").strip("%$ "))
    except ValueError:
        return None


def whole(text: str) -> int | None:
    """The whole number that a text spells, thousands separators or not; None if none.

    >>> whole("31,215"), whole("12.0"), whole("nan")
    (31215, 12, None)
    """
    value = number(text)
    if value is None or not abs(value) < 1 << 62 or value != int(value):
        return None
    return int(value)


class Says:
    """What it means when a line that is no record holds some words.

    Args:
        kind: what is said.
        pattern: regular expression; named groups are values that the words carry
            (`loss_scale`; `attempted_scale` for the scale before it was cut); `scaler` is
            the number of the scaler where there are several.
        hint: a part of every such line, tested before the pattern.
        signal: the signal it speaks of.
    """

    __slots__ = ("hint", "kind", "pattern", "signal")

    def __init__(self, kind: EventKind, pattern: str, *, hint: str, signal: str = "") -> None:
        self.kind = kind
        self.pattern = re.compile(pattern)
        self.hint = hint
        self.signal = signal


SHARED_EVENTS: tuple[Says, ...] = (
    Says(
        EventKind.OVERFLOW,
        r"(?:OVERFLOW|overflow)!(?: Rank \S+)? Skipping step\."
        rf"(?: Attempted loss scale: (?P<attempted_scale>{NUMBER})"
        rf"(?:, reducing to (?P<loss_scale>{NUMBER}))?)?",
        hint="Skipping step.",
        signal="grad_norm",
    ),
    Says(
        EventKind.OVERFLOW,
        r"radient overflow\.\s+Skipping step,(?: loss scaler (?P<scaler>\d{1,4}))?"
        rf" reducing loss scale to (?P<loss_scale>{NUMBER})",
        hint="radient overflow",
        signal="grad_norm",
    ),
    Says(
        EventKind.OVERFLOW,
        r"overflow detected,(?: ignoring gradient,)? setting (?:loss )?scale to:?(?:  to)?"
        rf" (?P<loss_scale>{NUMBER})",
        hint="overflow detected",
        signal="grad_norm",
    ),
    Says(EventKind.SCALE_FLOOR, r"(?i)minimum loss scale reached", hint="inimum loss scale"),
    Says(
        EventKind.SCALE_FLOOR,
        r"loss scale already at minimum",
        hint="already at minimum",
    ),
)
"""What every text format is searched for."""
