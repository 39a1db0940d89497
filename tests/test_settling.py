"""Which experiment comes next, when it ends, and what a stored diagnosis makes of results."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from foreshock.core.cause import Candidate, Cause, Diagnosis
from foreshock.core.errors import ConfigError, RunDirError
from foreshock.core.experiment import Experiment, Result
from foreshock.durable import RealDisk
from foreshock.experiment_choice import LEAST_NATS, expected_nats, next_of
from foreshock.replays import read_replay, replay_path, write_replay
from foreshock.settling import (
    ENOUGH,
    PRESETS,
    Settlement,
    by_diagnosis,
    experiments_named,
    settle,
)
from foreshock.trial import BudgetSpentError, NoResultError

TRUTH: dict[str, str] = {}


class FakeScene:
    """Counts steps; nothing is trained."""

    num_steps = 10
    exact = True
    is_advisory = False

    def __init__(self) -> None:
        self.steps_trained = 0
        self.steps = [0] * 5
        self.is_spent: Any = lambda: False


def experiment(name: str, cost: float = 1.0, *, refusal: str = "", error: Any = None) -> Experiment:
    @dataclass(frozen=True, kw_only=True)
    class One(Experiment):
        question: ClassVar[str] = "Is it so?"
        outcomes: ClassVar[Mapping[str, str]] = {"yes": "it is", "no": "it is not"}
        windows: ClassVar[float] = cost

        def why_not(self, scene: Any) -> str:
            return refusal

        def run(self, scene: Any) -> Result:
            scene.steps_trained += round(10 * cost)
            if error is not None:
                raise error
            return Result(
                experiment=name, outcome=TRUTH.get(name, "yes"), outcomes=("yes", "no"),
                statement=f"{name} was run", num_steps=0,
            )  # fmt: skip

    One.name = name
    return One()


def cause(name: str, outcomes: Mapping[str, Mapping[str, float]], *, data: bool = False) -> Cause:
    @dataclass(frozen=True, kw_only=True)
    class One(Cause):
        predicts: ClassVar[str] = "p"
        contradicts: ClassVar[str] = "c"
        settled_by: ClassVar[str] = f"by looking for {name}"
        prior: ClassVar[float] = 0.0

    One.name = name
    One.data_may_be_at_fault = data
    One.outcomes = outcomes
    return One()


def diagnosis(shares: Mapping[str, float], *, data: Sequence[str] = ()) -> Diagnosis:
    found = [
        Candidate(
            cause=name, probability=share, evidence=(), data_may_be_at_fault=name in data,
            settled_by=f"by {name}",
        )
        for name, share in shares.items()
    ]  # fmt: skip
    return Diagnosis(
        onset_step=5, alarm_step=6, loss_moved_step=None, first_mover="loss/global",
        candidates=tuple(found), path=(),
    )  # fmt: skip


def sure(yes: float) -> dict[str, float]:
    return {"yes": yes, "no": 1 - yes}


CAUSES = (
    cause("a", {"telling": sure(0.97), "weak": sure(0.55), "earlier_state": sure(0.9)}, data=True),
    cause("b", {"telling": sure(0.03), "weak": sure(0.45), "earlier_state": sure(0.9)}),
)
EVEN = diagnosis({"a": 0.5, "b": 0.5})


def run(
    experiments: Sequence[Experiment], start: Diagnosis = EVEN, **options: Any
) -> tuple[Settlement, list[str]]:
    begun: list[str] = []
    scene: Any = FakeScene()
    found = settle(
        scene,
        by_diagnosis(start, CAUSES),
        CAUSES,
        experiments=experiments,
        begin=lambda one: begun.append(one.name),
        **options,
    )
    return found, begun


def test_the_most_telling_one_comes_first_and_ends_it() -> None:
    found, begun = run([experiment("weak"), experiment("telling")])
    assert begun == ["telling"]
    assert found.is_settled
    assert found.after.top.cause == "a"
    assert found.after.top.probability == pytest.approx(0.97)
    assert "settled" in found.why
    assert [(one.experiment, one.num_steps) for one in found.still_open] == [("weak", 10)]
    assert found.still_open[0].nats < LEAST_NATS
    assert found.num_steps == 10
    assert found.told[0].result is not None
    assert found.told[0].result.num_steps == 10
    assert "a 50% to 97%" in found.told[0].moved


def test_what_is_cheap_for_what_it_tells_comes_before_what_is_dear() -> None:
    """0.56 nats for 40 windows are fewer a window than 0.02 for a tenth of one."""
    weak, dear = cause("a", {"w": sure(0.65), "t": sure(0.97)}), experiment("t", 40.0)
    scene: Any = FakeScene()
    begun: list[str] = []
    other = cause("b", {"w": sure(0.35), "t": sure(0.03)})
    settle(
        scene, by_diagnosis(EVEN, (weak, other)), (weak, other),
        experiments=[dear, experiment("w", 0.1)], begin=lambda one: begun.append(one.name),
    )  # fmt: skip
    assert begun == ["w", "t"]


@pytest.mark.parametrize(("share", "first"), [(0.5, "earlier_state"), (0.05, "telling")])
def test_palms_control_comes_before_anyone_blames_the_data(share: float, first: str) -> None:
    start = diagnosis({"a": share, "b": 1 - share}, data=["a"])
    _, begun = run([experiment("telling"), experiment("earlier_state")], start)
    assert begun[0] == first


def test_it_goes_on_while_something_may_be_told_and_says_when_nothing_can() -> None:
    found, begun = run([experiment("untold")])
    assert begun == []
    assert not found.is_settled
    assert "no experiment that is left" in found.why
    assert run([])[0].why == "no experiment is left"


def test_where_only_advisory_alarms_were_raised_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeScene, "is_advisory", True)
    found, begun = run([experiment("telling"), experiment("earlier_state")])
    assert begun == []
    assert "advisory" in found.why
    assert (found.after, found.num_steps, found.still_open) == (EVEN, 0, ())


@pytest.mark.parametrize(("outcome", "asked"), [("stays_away", True), ("comes_back", False)])
def test_where_a_replay_had_no_trouble_chance_comes_before_the_state(
    outcome: str, asked: bool
) -> None:
    made = Result(experiment="replay", outcome=outcome, outcomes=("yes", "no"), statement="s")
    left = [experiment("telling"), experiment("twice")]
    tables = {one.name: one.outcomes for one in CAUSES}
    found = next_of(left, [made], EVEN, tables)
    assert found is not None
    assert found.name == ("twice" if asked else "telling")


def test_one_that_is_like_those_made_is_worth_half() -> None:
    tables = {one: {"replay": sure(p), "left_out": sure(p)} for one, p in (("a", 0.9), ("b", 0.5))}
    alike, now = experiment("left_out"), EVEN
    first = expected_nats(alike, [], now, tables)
    made = Result(experiment="replay", outcome="yes", outcomes=("yes", "no"), statement="s")
    other = Result(experiment="twice", outcome="yes", outcomes=("yes", "no"), statement="s")
    assert first > LEAST_NATS
    assert expected_nats(alike, [made], now, tables) == pytest.approx(first / 2)
    assert expected_nats(alike, [other], now, tables) == pytest.approx(first)


@pytest.mark.parametrize("error", [RuntimeError("hook changed the type"), TypeError("no double")])
def test_a_program_that_cannot_compute_otherwise_ends_one_experiment_only(error: Any) -> None:
    found, begun = run([experiment("telling", error=error), experiment("weak")])
    assert begun[0] == "telling"
    assert str(error) in found.told[0].reason
    assert found.told[0].result is None


def test_unknown_is_never_settled() -> None:
    found, _ = run([experiment("untold")], diagnosis({"unknown": 0.99, "a": 0.01}))
    assert not found.is_settled


def test_what_is_refused_or_tells_nothing_is_said_with_its_reason() -> None:
    found, begun = run(
        [
            experiment("telling", error=NoResultError("it shows nothing")),
            experiment("earlier_state", refusal="no older snapshot"),
        ]
    )
    assert begun == ["telling"]
    assert {one.experiment: one.reason for one in found.told} == {
        "telling": "it shows nothing",
        "earlier_state": "no older snapshot",
    }
    assert found.after == EVEN
    assert not found.still_open


def test_a_budget_ends_it_between_and_within_experiments() -> None:
    many = [experiment("telling"), experiment("weak")]
    found, begun = run(many, is_spent=lambda: True)
    assert (begun, found.why) == ([], "the budget is spent")
    assert {one.experiment for one in found.still_open} == {"telling", "weak"}
    cut = experiment("telling", error=BudgetSpentError("the budget ended within it"))
    found, _ = run([cut])
    assert found.told[0].result is None
    assert found.after == EVEN


def test_named_ones_are_all_made_in_their_order() -> None:
    many = [experiment("weak"), experiment("untold"), experiment("telling")]
    _, begun = run(many, in_order=True)
    assert begun == ["weak", "untold", "telling"]


def test_a_result_that_speaks_against_it_moves_the_ranking() -> None:
    TRUTH["telling"] = "no"
    try:
        found, _ = run([experiment("telling")])
    finally:
        TRUTH.clear()
    assert found.after.top.cause == "b"
    (fact,) = found.after.top.evidence
    assert fact.weight == pytest.approx(math.log(0.97 * 2))
    assert "telling was run" in fact.statement


def test_a_stored_diagnosis_is_weighed_as_bayes_would() -> None:
    result = Result(experiment="telling", outcome="yes", outcomes=("yes", "no"), statement="s")
    start = diagnosis({"a": 0.2, "b": 0.7, "c": 0.1})
    found = by_diagnosis(start, CAUSES)([result])
    # c says nothing of it: both outcomes alike.
    whole = 0.2 * 0.97 + 0.7 * 0.03 + 0.1 * 0.5
    assert {one.cause: one.probability for one in found.candidates} == pytest.approx(
        {"a": 0.2 * 0.97 / whole, "b": 0.7 * 0.03 / whole, "c": 0.05 / whole}
    )
    assert by_diagnosis(start, CAUSES)([]).candidates[0].probability == pytest.approx(0.7)


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="'guess'"):
        experiments_named(["replay", "guess"])
    with pytest.raises(ConfigError, match="twice"):
        experiments_named(["replay", "replay"])
    assert [one.name for one in experiments_named(PRESETS["batch"])] == list(PRESETS["batch"])
    assert PRESETS["batch"][0] == "earlier_state"
    assert ENOUGH == 0.9


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    found, _ = run([experiment("telling"), experiment("earlier_state", refusal="none left")])
    assert read_replay(RealDisk(), tmp_path, 3) is None
    path = write_replay(RealDisk(), tmp_path, 3, 2, found)
    assert path == replay_path(tmp_path, 3)
    told = read_replay(RealDisk(), tmp_path, 3)
    assert told is not None
    assert (told.before, told.after) == (found.before, found.after)
    assert told.results == tuple(o.result for o in found.told if o.result is not None)
    assert told.refused == {"earlier_state": "none left"}
    assert (told.incident, told.num_plans, told.is_settled) == (3, 2, True)
    assert (told.num_steps, told.exact, told.why) == (10, True, found.why)
    write_replay(RealDisk(), tmp_path, 3, 4, found)
    again = read_replay(RealDisk(), tmp_path, 3)
    assert again is not None
    assert again.num_plans == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda told: [],
        lambda told: {},
        lambda told: {**told, "format": 2},
        lambda told: {**told, "incident": "3"},
        lambda told: {**told, "incident": 4},
        lambda told: {**told, "told": [{}]},
        lambda told: {**told, "told": [1] * 2000},
        lambda told: {**told, "exact": "yes"},
        lambda told: {**told, "settled": None},
        lambda told: {**told, "after": {**told["after"], "candidates": [{"cause": 1}]}},
        lambda told: {**told, "why": 7},
        lambda told: "x" * 10,
    ],
)
def test_a_hostile_file_is_one_clear_error(tmp_path: Path, change: Any) -> None:
    found, _ = run([experiment("telling")])
    path = write_replay(RealDisk(), tmp_path, 3, 2, found)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(RunDirError, match=r"incident-3\.json"):
        read_replay(RealDisk(), tmp_path, 3)


def test_a_torn_a_deep_and_a_huge_file_are_one_clear_error(tmp_path: Path) -> None:
    path = replay_path(tmp_path, 3)
    path.parent.mkdir()
    for data in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b" " * (1 << 25)):
        path.write_bytes(data)
        with pytest.raises(RunDirError, match=r"incident-3\.json"):
            read_replay(RealDisk(), tmp_path, 3)
