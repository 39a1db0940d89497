"""What an incident was a return of when it opened it remains, wherever the run has been since."""

from dataclasses import replace

from foreshock.core.action import ActionCall, Plan
from foreshock.core.incident import Outcome
from foreshock.core.recurrence import same_place
from tests.core.test_policy import NOW, after, blamed

WINDOW = ActionCall(name="quarantine", arguments={"start": 400, "stop": 480, "reason": "r"})
BACK = Plan(rung="rollback", why="w", actions=(WINDOW,), target_step=50)


def earlier():
    found = after(BACK, onset=55)
    found.outcome, found.last_alarm_step, found.closed_step = Outcome.RECOVERED, 59, 70
    return found


def test_trouble_out_of_released_data_stays_a_return_of_it() -> None:
    before = earlier()
    now = replace(NOW, earlier=[before], diagnosis=blamed("data_batch", onset=300))
    assert same_place(now, 10) == []
    opens = replace(now, window=(470, 500))
    assert same_place(opens, 10) == [before]
    incident = after(Plan(rung="rollback_further", why="w", actions=(), target_step=290), onset=300)
    incident.id = 2
    later = replace(now, incident=incident, window=(520, 560))  # past what was set aside since
    assert same_place(later, 10) == []
    incident.plans[0].window = (470, 500)
    assert same_place(later, 10) == [before]


def test_a_later_onset_in_an_open_incident_is_still_in_its_place() -> None:
    before = earlier()
    incident = after(Plan(rung="rollback_further", why="w", actions=(), target_step=40), onset=60)
    incident.id = 2
    now = replace(NOW, earlier=[before], incident=incident)
    for onset in (61, 20):  # 20: far before what the first incident went back to
        told = replace(now, diagnosis=blamed("data_batch", onset=onset))
        assert same_place(told, 10) == [before]
