"""Which alarms leave no choice: one is enough, and the run is not left as it is."""

import math
from typing import Final

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.names import LOSS, PARAM_NORM

_HUGE: Final = 10.0


def is_pressing(alarm: Alarm, *, committed: bool) -> bool:
    """Whether an alarm shows that the state itself is broken.

    A weight is NaN or Inf; or the loss was, and the update was made all the same (one that was
    skipped left the state as it was: it counts as a skip, and too many of them in a row or close
    together are acted on). Or a weight norm has jumped to ten times what it was: what updates,
    restarts and weights set anew on purpose do not do, while a flipped exponent bit does.
    Smaller jumps, and falls, are for a probe to judge.

    Args:
        alarm: raised in this step.
        committed: whether the step's update was made.

    >>> from functools import partial
    >>> of = partial(Alarm, detector="d", step=9, onset_step=8, baseline=30.0)
    >>> jump = partial(of, kind=AlarmKind.DISCONTINUITY, series="param_norm/embed")
    >>> [is_pressing(jump(value=value), committed=True) for value in (1e36, 90.0)]
    [True, False]
    >>> broken = of(kind=AlarmKind.NONFINITE, series="loss/global", value=float("nan"))
    >>> [is_pressing(broken, committed=committed) for committed in (True, False)]
    [True, False]

    No source: our choice.
    """
    if alarm.kind is AlarmKind.NONFINITE:
        return alarm.signal == PARAM_NORM.name or (committed and alarm.signal == LOSS.name)
    jumped = alarm.kind is AlarmKind.DISCONTINUITY and alarm.signal == PARAM_NORM.name
    return jumped and math.isfinite(alarm.baseline) and alarm.value >= _HUGE * alarm.baseline
