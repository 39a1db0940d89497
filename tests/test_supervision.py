"""What the supervisor tells the policy of a run."""

from typing import Any

from foreshock.core.incident import IncidentBook
from foreshock.core.policy import Situation
from foreshock.data.stream import Stage
from tests.guard.programs import Sentences, guarded, make, run


class Recording:
    """A policy that remembers what it was asked."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.asked: list[Situation] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, situation: Situation) -> Any:
        self.asked.append(situation)
        return self._policy.decide(situation)


def twice_poisoned() -> list[Stage]:
    parts = [(480, 1, False), (32, 2, True), (480, 3, False), (32, 4, True), (800, 5, False)]
    return [
        Stage(name=f"s{seed}", sources={f"d{seed}": Sentences(size, seed=seed, poisoned=bad)})
        for size, seed, bad in parts
    ]


def test_a_situation_holds_the_history_and_the_window_since_the_onset(tmp_path) -> None:
    training = make(stages=twice_poisoned())
    guard = guarded(training, tmp_path / "run")
    recording = Recording(guard._supervisor.policy)
    guard._supervisor.policy = recording  # type: ignore[assignment]
    run(training, guard)
    first, second = guard.book.incidents[:2]
    asked = [one for one in recording.asked if one.incident is None]
    at_first = next(one for one in asked if not one.earlier)
    at_second = next(one for one in asked if one.earlier)
    assert at_second.earlier == [first]
    assert second.id == 2
    assert {one.num_samples for one in asked} == {training.stream.order.total}
    onset = at_first.diagnosis.onset_step
    assert at_first.window == (8 * (onset - 1), 8 * at_first.step)
    assert at_first.window[1] == at_first.position
    climbing = [one for one in recording.asked if one.incident is first]
    assert all(one.earlier == [] for one in climbing)


def test_advice_is_kept_and_what_was_judged_stays_judged() -> None:
    advice = {"kind": "advice", "attempt": 1, "step": 30, "advice_id": 1}
    book = IncidentBook([advice, {**advice, "step": 50, "advice_id": 2}])
    assert [one["step"] for one in book.advices] == [30, 50]
    assert book.judged_step == 50
    assert (book.incidents, book.open, book.num_rollbacks) == ([], None, 0)
