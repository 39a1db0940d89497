"""Steps that a log counts anew in every epoch, counted through."""

_MAX_EPOCHS = 100_000
_MAX_STEP = 1 << 60


class EpochSteps:
    """Counts steps through the epochs of a log, line by line.

    An epoch's length is what the log says, or else the last step seen of the epoch before. A
    step counts from the first epoch if lengths are known, else from the first epoch seen.

    Args:
        may_run_on: whether the format may number the steps of the whole run instead, which
            shows in a step that rises on as an epoch begins.

    >>> steps = EpochSteps()
    >>> [steps.count(epoch, step, None) for epoch, step in ((1, 5), (1, 10), (2, 5), (2, 10))]
    [5, 10, 15, 20]
    >>> EpochSteps().count(3, 40, 100)
    240
    """

    __slots__ = ("_before", "_epoch", "_last", "_may_run_on", "_starts")

    def __init__(self, *, may_run_on: bool = False) -> None:
        self._may_run_on = may_run_on
        self._starts: dict[int, int] = {}
        self._before = 0
        self._epoch: int | None = None
        self._last = 0

    def count(self, epoch: int, step: int, length: int | None) -> int:
        """The step of the run for a step of an epoch.

        Args:
            epoch: counted from 0 or 1.
            step: within the epoch.
            length: steps of an epoch, if the log says so.
        """
        if epoch != self._epoch:
            self._before = self._start(epoch, step, length)
            if len(self._starts) < _MAX_EPOCHS:
                self._starts[epoch] = self._before
            self._epoch = epoch
        self._last = step
        return min(self._before + step, _MAX_STEP)

    def _start(self, epoch: int, step: int, length: int | None) -> int:
        if epoch in self._starts:
            return self._starts[epoch]  # gone back to: a restart, or another run
        if self._epoch is None:
            known = length if length and length < _MAX_STEP and not self._may_run_on else 0
            return max(epoch - 1, 0) * known
        if self._may_run_on and step > self._last:
            return self._before
        num_epochs = epoch - self._epoch
        seen = self._last + (step == 0) if num_epochs > 0 else 0  # counted from 0, one more
        return max(0, self._before + (length or seen) * num_epochs)


def count_of(value: float) -> int:
    """A counter that was read as a number; -1 for what counts nothing.

    >>> count_of(40.0), count_of(float("nan")), count_of(1e300)
    (40, -1, -1)
    """
    return int(value) if -1 <= value < _MAX_STEP else -1
