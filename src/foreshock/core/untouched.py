"""Whether an episode can have touched the state: not where all of its updates were skipped."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm


def left_untouched(
    alarms: Sequence[Alarm], steps: NDArray[np.integer], committed: NDArray[np.bool_]
) -> bool:
    """Whether the state of now is provably none that an episode's steps have made.

    A skipped update leaves weights and moments as they were. So an episode left the state
    untouched if each of its alarms, from its onset to where it was raised, lies in steps that
    were skipped; and if an update was made since, in a step without an alarm: else it may be
    the state and not the batch that was out of range, and was so before the first of them.

    Args:
        alarms: of the episode; an onset is at or before the step of its alarm.
        steps: `[T]` steps of the run's present lineage, ascending, up to now. What lies before
            them counts as made.
        committed: `[T]` whether the update of each was made.

    >>> import numpy as np
    >>> from foreshock.core.detector import AlarmKind
    >>> def alarm(step, onset):
    ...     return Alarm(detector="d", kind=AlarmKind.NONFINITE, series="grad_norm/global",
    ...         step=step, onset_step=onset, value=1.0)
    >>> steps, made = np.array([7, 8, 9]), np.array([True, False, True])
    >>> left_untouched([alarm(8, 8)], steps, made), left_untouched([alarm(8, 7)], steps, made)
    (True, False)
    >>> left_untouched([alarm(8, 8)], steps[:2], made[:2])  # nothing has trained well since
    False
    """
    if not alarms:
        return True
    skipped = {int(step) for step in steps[~committed]}
    touched = any(
        step not in skipped
        for first, last in {(alarm.onset_step, alarm.step) for alarm in alarms}
        for step in range(first, last + 1)
    )
    later = committed & (steps > max(alarm.step for alarm in alarms))
    return not touched and bool(later.any())
