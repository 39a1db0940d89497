"""What watching costs: seconds by part, measured where the work is done."""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")


class Meter:
    """Adds up the seconds that functions take, by the name of what they belong to.

    Nested functions count once, for the innermost. With no meter nothing is wrapped, so that
    measuring costs nothing when nobody measures.

    Args:
        clock: seconds; on an accelerator one that waits for it first.

    >>> ticks = iter(range(10))
    >>> meter = Meter(lambda: float(next(ticks)))
    >>> meter.wrap("loss", lambda x: x + 1)(1), dict(meter.seconds), meter.calls["loss"]
    (2, {'loss': 1.0}, 1)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds by name."""
        self.calls: Counter[str] = Counter()
        """Calls by name."""
        self._inner: list[float] = []

    def wrap(self, name: str, function: Callable[Args, Result]) -> Callable[Args, Result]:
        """The same function, timed."""

        @functools.wraps(function)
        def timed(*args: Args.args, **named: Args.kwargs) -> Result:
            begin = self._clock()
            self._inner.append(0.0)
            try:
                return function(*args, **named)
            finally:
                took = self._clock() - begin
                self.seconds[name] += took - self._inner.pop()
                self.calls[name] += 1
                if self._inner:
                    self._inner[-1] += took

        return timed

    def clear(self) -> None:
        """Begin anew, after a warm-up."""
        self.seconds.clear()
        self.calls.clear()
