"""Which episodes cannot have touched the state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.untouched import left_untouched


def alarm(step: int, onset: int | None = None) -> Alarm:
    return Alarm(
        detector="nonfinite",
        kind=AlarmKind.NONFINITE,
        series="grad_norm/global",
        step=step,
        onset_step=step if onset is None else onset,
        value=np.nan,
    )


def judged(alarms, made: str, first: int = 1) -> bool:
    """`made`: one letter a step, "s" where it was skipped."""
    steps = np.arange(first, first + len(made))
    return left_untouched(alarms, steps, np.array([one != "s" for one in made], dtype=bool))


@pytest.mark.parametrize(
    ("alarms", "made", "untouched"),
    [
        ([], "", True),
        ([], "cs", True),
        ([alarm(3)], "ccsc", True),
        ([alarm(3)], "ccs", False),  # the state itself may be what was out of range
        ([alarm(3)], "ccss", False),
        ([alarm(3)], "cccc", False),
        ([alarm(3), alarm(4)], "ccssc", True),
        ([alarm(3), alarm(5)], "ccscsc", True),
        ([alarm(3), alarm(5)], "ccsccc", False),  # the second one was made
        ([alarm(3), alarm(5)], "ccscs", False),
        ([alarm(4, 3)], "ccssc", True),
        ([alarm(4, 2)], "ccssc", False),  # it began in a step that was made
    ],
)
def test_by_hand(alarms, made: str, untouched: bool) -> None:
    assert judged(alarms, made) is untouched


def test_what_is_no_longer_known_counts_as_made() -> None:
    assert judged([alarm(3)], "ccsc")
    assert not judged([alarm(3)], "ccsc"[3:], first=4)


@given(st.lists(st.sampled_from(["well", "skipped", "alarmed", "both"]), max_size=30))
def test_against_a_state_that_counts_its_updates(history) -> None:
    """The state is the set of alarmed steps whose updates it holds."""
    holds, alarms, made, quiet_since = set(), [], "", True
    for step, what in enumerate(history, start=1):
        skipped, alarmed = what in ("skipped", "both"), what in ("alarmed", "both")
        made += "s" if skipped else "c"
        if alarmed:
            alarms.append(alarm(step))
            quiet_since = False
            holds |= set() if skipped else {step}
        elif not skipped:
            quiet_since = True
    assert judged(alarms, made) is (not holds and quiet_since)
