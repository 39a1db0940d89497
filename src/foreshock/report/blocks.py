"""Small charts made of characters: block bars over an axis with marked steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from foreshock.report.curves import Floats, Ints

LEVELS: Final = " ▁▂▃▄▅▆▇█"
NONFINITE: Final = "×"
MAX_COLUMNS: Final = 60
_WIDEST_VALUE: Final = 3
"""Columns that one value fills at most, where there are few."""

_ASCII: Final = {
    ord(sign): plain
    for signs, plain in (
        *(("▁▂", "."), ("▃▄", ":"), ("▅▆", "+"), ("▇█", "#"), ("×", "x"), ("─·–—−⁻", "-")),
        *(("…±", "~"), ("→≥", ">"), ("≤", "<"), ("“”", '"'), ("‘’", "'")),
    )
    for sign in signs
}


class Span(NamedTuple):
    """The stretch of the file that the charts of one group share.

    Attributes:
        first, last: clocks of its ends.
        columns: of the chart; each value may fill several.
        fill: columns a value.
    """

    first: int
    last: int
    columns: int
    fill: int

    @property
    def width(self) -> int:
        """Characters across."""
        return self.columns * self.fill

    def column(self, clock: int) -> int:
        """First character of the column in which a clock falls."""
        return int(self.columns_of(np.array([clock], np.int64))[0]) * self.fill

    def columns_of(self, clock: Ints) -> Ints:
        """Column of each clock; the first or the last where it lies outside."""
        place = (clock - self.first) * self.columns // (self.last - self.first + 1)
        return np.clip(place, 0, self.columns - 1)


class Sign(NamedTuple):
    """A marked step of the axis."""

    letter: str
    word: str
    clock: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A chart of one series.

    Attributes:
        rows: of characters, the topmost first.
        low, high: what the lowest and the highest bar stand for; NaN if nothing is finite.
        log: whether the heights are logarithms.
    """

    rows: tuple[str, ...]
    low: float
    high: float
    log: bool


def span_of(clocks: Sequence[Ints], width: int) -> Span:
    """The span that holds every value of some series (none empty), at most `width` wide."""
    first = min(int(one[0]) for one in clocks)
    last = max(int(one[-1]) for one in clocks)
    gaps = [float(np.median(np.diff(one))) for one in clocks if len(one) > 1]
    spacing = max(1, int(min(gaps))) if gaps else 1
    slots = (last - first) // spacing + 1
    columns = max(1, min(slots, width, MAX_COLUMNS))
    fill = max(1, min(_WIDEST_VALUE, min(width, MAX_COLUMNS) // columns))
    return Span(first, last + spacing - 1, columns, fill)


def bars(  # noqa: PLR0917 - a chart is its values, its place and its size
    clock: Ints, values: Floats, span: Span, num_rows: int, usual: float, wide: float
) -> Bars:
    """Draw a series.

    Of the values that fall into one column the one farthest from the usual level is drawn,
    so that no spike is lost; of a column with a value that is not finite, its mark.

    Args:
        clock, values: `[T]`.
        usual: the level to measure from; NaN to draw the median of each column instead.
        wide: heights are logarithms where all is positive and spans more than this factor.
    """
    column = span.columns_of(clock)
    finite = np.isfinite(values)
    drawn = np.full(span.columns, np.nan)
    for place in np.unique(column[finite]):
        drawn[place] = _pick(values[finite & (column == place)], usual)
    broken = np.zeros(span.columns, bool)
    broken[column[~finite]] = True
    here = drawn[np.isfinite(drawn)]
    if not len(here):
        low = high = math.nan
        log = False
        heights = np.zeros(span.columns, np.int64)
    else:
        low, high = float(here.min()), float(here.max())
        log = low > 0 and high / low > wide
        ends = (math.log(low), math.log(high)) if log else (low, high)
        filled = np.where(np.isfinite(drawn), drawn, low)
        with np.errstate(over="ignore"):
            level = (np.log(filled) if log else filled) - ends[0]
        room = ends[1] - ends[0]
        share = level / room if room > 0 and math.isfinite(room) else np.full(len(level), 0.5)
        heights = 1 + np.round(share * (8 * num_rows - 1)).astype(np.int64)
        heights[~np.isfinite(drawn)] = 0
    rows: list[str] = []
    for row in range(num_rows):
        part = np.clip(heights - 8 * (num_rows - 1 - row), 0, 8)
        signs = [LEVELS[one] for one in part]
        if row == 0:
            signs = [NONFINITE if bad else sign for bad, sign in zip(broken, signs, strict=True)]
        else:
            signs = [" " if bad else sign for bad, sign in zip(broken, signs, strict=True)]
        rows.append("".join(sign * span.fill for sign in signs))
    return Bars(rows=tuple(rows), low=low, high=high, log=log)


def axis(span: Span, signs: Sequence[Sign], room: int) -> tuple[str, str]:
    """The axis with its signs, and beneath it their words and steps, `room` wide at most."""
    line = ["─"] * span.width
    merged: dict[int, list[Sign]] = {}
    for sign in signs:
        place = span.column(sign.clock) + span.fill // 2
        line[place] = sign.letter
        merged.setdefault(place, []).append(sign)
    places = sorted(merged)
    for long in (True, False):
        told = [_told(merged[place], long) for place in places]
        beneath = _laid(places, told, room)
        if beneath is not None:
            return "".join(line), beneath
    return "".join(line), ""


def to_ascii(text: str) -> str:
    """The same text for a terminal that can print ASCII only; nothing changes its width.

    >>> to_ascii("▁▄█× step 3…")
    '.:#x step 3~'
    """
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def _pick(values: Floats, usual: float) -> float:
    if math.isnan(usual):
        return float(np.median(values))
    if usual > 0 and (values > 0).all():
        return float(values[np.abs(np.log(values) - math.log(usual)).argmax()])
    with np.errstate(over="ignore"):
        return float(values[np.abs(values - usual).argmax()])


def _told(signs: Sequence[Sign], long: bool) -> str:
    steps = list(dict.fromkeys(sign.step for sign in signs))
    if not long:
        return f"{steps[0]:,}"
    parts: list[str] = []
    for step in steps:
        names = ", ".join(sign.word for sign in signs if sign.step == step)
        parts.append(f"{names} {step:,}")
    return ", ".join(parts)


def _laid(places: Sequence[int], told: Sequence[str], room: int) -> str | None:
    """Each text at its place or right of it, moved left as far as the room asks for."""
    starts: list[int] = []
    end = -2
    for place, text in zip(places, told, strict=True):
        starts.append(max(place, end + 2))
        end = starts[-1] + len(text)
    limit = room
    for index in reversed(range(len(starts))):
        starts[index] = min(starts[index], limit - len(told[index]))
        limit = starts[index] - 2
    if starts and starts[0] < 0:
        return None
    line = ""
    for start, text in zip(starts, told, strict=True):
        line = line.ljust(start) + text
    return line
