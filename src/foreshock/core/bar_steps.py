"""Rows between progress bars: which bar tells the step of a row."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Bar = tuple[int, int]
"""Where a bar stands, and its end."""

_MIN_SHARE = 0.8


@dataclass(slots=True)
class Waiting:
    """Something that was read and is not given to the log yet.

    Attributes:
        give: gives it to the log, with its step.
        is_row: whether it has a step of its own, from the bars; others only keep their place.
        before: the last bar before it.
        after: the first bar after it.
    """

    give: Callable[[int | None], None]
    is_row: bool
    before: Bar | None = None
    after: Bar | None = None


class BarSteps:
    """Holds the first rows of a log until it is plain how they and the bars belong together.

    A program that prints through its bar redraws it after each row, where it shows the row's
    step; other bars stand before the row. Where output is buffered, rows come in heaps that
    no bar belongs to: then rows have no steps.

    Args:
        num_held: rows after which the decision falls.

    >>> given, steps = [], BarSteps()
    >>> for n in (10, 20, 30):
    ...     steps.bar(n, 99)
    ...     steps.row(given.append)
    ...     steps.bar(n, 99)
    >>> steps.end(), given
    (None, [10, 20, 30])
    """

    def __init__(self, num_held: int = 64) -> None:
        self._num_held = num_held
        self._num_rows = 0
        self._queue: list[Waiting] = []
        self._open = False
        self._bar: Bar | None = None
        self._is_decided = False
        self._after = False
        self._last = -1
        self.total: int | None = None
        """End of the bar that counts steps, once that is decided; None if none does."""
        self.longest: int | None = None
        """End of the bar that rows stood beside most often, whether it tells steps or not."""

    @property
    def is_out(self) -> bool:
        """Whether it is decided that bars tell no steps, and nothing is held."""
        return self._is_decided and self.total is None and not self._queue

    def bar(self, at: int, total: int) -> None:
        """A bar was drawn."""
        bar = (at, total)
        if self._is_decided and total != self.total:
            return
        self._bar = bar
        if self._open:
            for one in self._queue:
                if one.is_row and one.after is None:
                    one.after = bar
            self._open = False
            if self._is_decided:
                self._flush()

    def row(self, give: Callable[[int | None], None]) -> None:
        """A row was printed; `give` is called with its step."""
        if self._is_decided:
            self._flush()
            if self.total is None:
                give(None)
                return
        self._queue.append(Waiting(give=give, is_row=True, before=self._bar))
        self._num_rows += 1
        self._open = True
        if not self._is_decided and self._num_rows >= self._num_held:
            self._decide()

    def aside(self, give: Callable[[int | None], None]) -> None:
        """Something else was read, that must keep its place between the rows."""
        if not self._queue:
            give(None)
            return
        self._queue.append(Waiting(give=give, is_row=False))
        if len(self._queue) > 100_000 and not self._is_decided:
            self._decide()

    def end(self) -> None:
        """Nothing more will come, or something new begins: the next bars may be others."""
        if not self._is_decided:
            self._decide()
        self._flush()
        self._num_rows, self._open, self._bar = 0, False, None
        self._is_decided = False

    def _decide(self) -> None:
        self._is_decided = True
        rows = [one for one in self._queue if one.is_row]
        totals = Counter(bar[1] for one in rows for bar in (one.before, one.after) if bar)
        best: tuple[int, bool] | None = None
        if totals:
            self.total = self.longest = totals.most_common(1)[0][0]
            befores = self._steps(rows, after=False)
            afters = self._steps(rows, after=True)
            best = max((_rises(befores), False), (_rises(afters), True))
            same = sum(a == b for a, b in zip(befores, afters, strict=True))
            if _rises(afters) == _rises(befores):
                best = (best[0], 2 * same > len(rows) or 0 in befores)
        if best is None or best[0] < _MIN_SHARE * len(rows):
            self.total = None
            self._open = False
        self._after = bool(best and best[1])
        last = self._queue.pop() if self._open and self._queue[-1].is_row else None
        self._flush()
        if last is not None:
            self._queue.append(last)

    def _steps(self, rows: list[Waiting], *, after: bool) -> list[int | None]:
        """The step of each row by the bar after it (or before it), the other if there is none."""
        steps: list[int | None] = []
        for one in rows:
            pair = (one.after, one.before) if after else (one.before, one.after)
            bar = next((bar for bar in pair if bar and bar[1] == self.total), None)
            steps.append(bar[0] if bar else None)
        return steps

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        steps = self._steps([one for one in queue if one.is_row], after=self._after)
        following = iter(steps)
        for one in queue:
            step = next(following) if one.is_row else None
            one.give(None if step == self._last else step)
            self._last = self._last if step is None else step


def _rises(steps: list[int | None]) -> int:
    """How many rows have a step of their own, above the one before."""
    num_rises, last = 0, -1
    for step in steps:
        if step is not None and step != last:
            num_rises += 1
            last = step
    return num_rises
