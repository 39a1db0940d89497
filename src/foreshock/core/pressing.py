"""Which alarms leave no choice: one is enough, and the run is not left as it is."""

import math
from typing import Final

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.names import LOSS, PARAM_NORM

_HUGE: Final = 10.0


def is_pressing(alarm: Alarm) -> bool:
    """Whether an alarm shows that the state itself is broken.

    The loss was NaN or Inf in the forward, a weight is, or a weight norm has jumped to ten
    times what it was: what updates, restarts and weights set anew on purpose do not do, while
    a flipped exponent bit does. Smaller jumps, and falls, are for a probe to judge.

    >>> from functools import partial
    >>> of = partial(Alarm, detector="d", step=9, onset_step=8, baseline=30.0)
    >>> jump = partial(of, kind=AlarmKind.DISCONTINUITY, series="param_norm/embed")
    >>> is_pressing(jump(value=1e36)), is_pressing(jump(value=90.0))
    (True, False)

    No source: our choice.
    """
    if alarm.kind is AlarmKind.NONFINITE:
        return alarm.signal in (LOSS.name, PARAM_NORM.name)
    jumped = alarm.kind is AlarmKind.DISCONTINUITY and alarm.signal == PARAM_NORM.name
    return jumped and math.isfinite(alarm.baseline) and alarm.value >= _HUGE * alarm.baseline
