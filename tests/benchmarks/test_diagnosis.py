"""The injection matrix: what is drawn, what is kept, and one trial from end to end."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.diagnosis import matrix, plans, runs
from benchmarks.diagnosis.experiments import BUDGET_STEPS, settled_anew
from benchmarks.diagnosis.keeping import Cases
from benchmarks.diagnosis.matrix import Wanted, case_of_symptoms, look_anew, weighed_anew
from benchmarks.diagnosis.plans import BENIGN, HEALTHY, key_of, levels_of, plan_of
from benchmarks.diagnosis.runs import ANCHOR_STEP
from benchmarks.diagnosis.trial import path_of, run_trial
from benchmarks.recovery.results import Results
from foreshock.catalog import members
from foreshock.core.case import BatchFinding, Case, Change, Intervention
from foreshock.core.cause import Cause
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.experiment import Result
from foreshock.core.reading import ABSENT
from foreshock.core.timeline import Timeline
from tests.benchmarks.trials import trial


def alarm(step: int = 12, value: float = 9.0, **changed: Any) -> Alarm:
    fields = {"kind": AlarmKind.SPIKE, "detector": "spike", "series": "loss/global"}
    return Alarm(**{**fields, "step": step, "onset_step": step, "value": value, **changed})


def case(alarms: list[Alarm], last: int = 20) -> Case:
    line = Timeline(["loss/global", "lr/global"], dtype=np.float32)
    for step in range(1, last + 1):
        row = np.array([2.0 + step / 100, ABSENT if step % 2 else 0.1], np.float32)
        line.append(1, step, step != 7, row)
    return Case(timeline=line, alarms=tuple(alarms))


# ---- what is drawn ----------------------------------------------------------------------


def test_every_fault_can_be_drawn_at_every_level() -> None:
    for kind in matrix.all_kinds():
        for level in levels_of(kind):
            one = plan_of(kind, level, "small", 3)
            assert one.step > ANCHOR_STEP
            assert one.cause == BENIGN or one.fault is not None
            json.dumps(dict(one.settings))


def test_the_place_of_a_strike_does_not_depend_on_level_or_size() -> None:
    some = [
        plan_of("lr_jump", level, size, 4) for level in plans.LEVELS for size in ("small", "large")
    ]
    assert len({(one.step, one.restart_after, one.changes) for one in some}) == 1
    assert len({one.step for one in (plan_of("lr_jump", "mild", "small", n) for n in range(9))}) > 3


def test_a_restart_comes_before_the_strike_and_not_with_faults_alone() -> None:
    kinds = [one for one in matrix.all_kinds() if one not in HEALTHY]
    drawn = [
        plan_of(kind, levels_of(kind)[-1], "small", seed) for kind in kinds for seed in range(20)
    ]
    after = [one for one in drawn if one.restart_after is not None]
    assert all(one.restart_after < one.step for one in after if one.restart_after is not None)
    unrelated = [one for one in after if one.restart_after != one.step - 1]
    assert len(unrelated) > 0.05 * len(drawn), "else a start would tell everything"


def test_healthy_trials_come_first_and_faults_that_need_ranks_never() -> None:
    wanted = Wanted(
        kinds=matrix.all_kinds(), levels=("strong",), sizes=("small",), seeds=(0, 1)
    ).trials()
    assert [kind for kind, *_ in wanted[: len(HEALTHY)]] == list(HEALTHY)
    assert not {kind for kind, *_ in wanted} & plans.NEEDS_RANKS
    assert len(wanted) == len(set(wanted))
    assert {level for _, level, *_ in wanted} == {"strong", "as is"}


def test_every_cause_of_a_fault_is_one_that_can_be_named() -> None:
    told = {plan_of(kind, levels_of(kind)[0], "small", 0).cause for kind in matrix.all_kinds()}
    assert told <= set(members("causes"))


# ---- what is kept -----------------------------------------------------------------------


def whole_case() -> Case:
    line = case([alarm(), alarm(13, math.inf)]).timeline
    shifted = Timeline(line.series, dtype=np.float32)
    for place, step in enumerate(line.steps.tolist()):
        shifted.append(1, step + ANCHOR_STEP - 10, bool(line.committed[place]), line.table[place])
    return Case(
        timeline=shifted,
        alarms=(alarm(242), alarm(243, math.nan)),
        advisories=(alarm(241, detector="drift", kind=AlarmKind.DRIFT),),
        facts={"has_scaler": False, "precision": "fp32", "harm": ""},
        batch_findings=[BatchFinding(statement="odd", strength=2.0)],
        tried=("rollback",),
        starts=(0, 239),
        changes=(Change(step=239, kind="code", name="revision", before="a", after="b"),),
        interventions=(Intervention(step=200, action="rollback", helped=None),),
        findings=((240, "replicas differ"),),
        results=(
            Result(
                experiment="replay", outcome="stays_away", outcomes=("stays_away",), statement=""
            ),
        ),
    )


def test_a_case_comes_back_as_it_was(tmp_path: Path) -> None:
    cases, one = Cases(tmp_path / "cases"), whole_case()
    cases.keep("trial/small/x/mild/00", one, "small-plain-0")
    back = Cases(tmp_path / "cases").load("trial/small/x/mild/00")
    for name, value in vars(one).items():
        if name not in ("timeline", "alarms", "batch_findings"):
            assert getattr(back, name) == value, name
    assert repr(back.alarms) == repr(one.alarms)
    assert list(back.batch_findings or ()) == list(one.batch_findings or ())
    mine, theirs = one.timeline, back.timeline
    assert theirs.series == mine.series
    assert theirs.steps.tolist() == mine.steps.tolist()
    assert theirs.committed.tolist() == mine.committed.tolist()
    assert theirs.table.tobytes() == mine.table.tobytes(), "to the bit: some are absent"
    assert theirs.steps_of("lr/global").tolist() == mine.steps_of("lr/global").tolist()


def test_what_lies_before_the_fork_is_kept_once(tmp_path: Path) -> None:
    cases = Cases(tmp_path)
    for seed in range(3):
        cases.keep(f"trial/small/x/mild/{seed:02d}", whole_case(), "small-plain-0")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "base-small-plain-0.npz"
    assert len(names) == 4
    with np.load(tmp_path / "trial--small--x--mild--00.npz") as later:
        assert later["steps"].min() > ANCHOR_STEP


def test_looking_anew_changes_what_is_said_and_nothing_else(tmp_path: Path) -> None:
    store, key = Results(tmp_path / "trials.jsonl"), key_of("x", "mild", "small", 0)
    Cases(tmp_path / "cases").keep(key, whole_case(), "small-plain-0")
    store.add(key, trial("x", "lr_too_high", ("benign", 1.0), unjudged="broken"))
    store.add("trial/small/x/mild/01", trial("x", "lr_too_high", ("benign", 1.0)))
    assert look_anew(store, [key, "trial/small/x/mild/01"]) == 1, "of one there is no case"
    found = Results(tmp_path / "trials.jsonl").get(key)
    assert "unjudged" not in found
    assert found["losses"] == [2.0] * 20
    assert {cause for cause, _ in found["ranking"]} == set(members("causes"))
    assert sum(p for _, p in found["ranking"]) == pytest.approx(1, abs=1e-4)
    assert look_anew(store, [key]) == 0


def test_causes_that_read_more_than_symptoms_are_not_weighed_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(Cause):
        name = "own"

        def weigh(self, case: Case) -> list[Any]:
            return []

    with pytest.raises(ValueError, match="own read more than symptoms"):
        matrix.check_tables([Own()])
    monkeypatch.setattr(matrix, "causes", lambda: (Own(),))
    with pytest.raises(ValueError, match="--relook"):
        weighed_anew(trial("x", "y", ("y", 1.0), symptoms={"loss_moved": 1.0}))
    bare = trial("x", "y")
    assert weighed_anew(bare) is bare


def test_symptoms_that_no_look_tells_of_any_more_are_left_out() -> None:
    told = next(name for look in members("symptoms").values() for name in look.usual)
    found = case_of_symptoms({told: 0.5, "no_longer_told": 1.0})
    assert {name: one.symptom.degree for name, one in found.symptoms.items()} == {told: 0.5}


def test_leaves_of_the_flow_chart() -> None:
    assert path_of(case([alarm(value=math.nan)])) == "nonfinite"
    assert path_of(case([alarm()])) == "falls_back"
    assert path_of(case([alarm(step=20)])) == "lasting"


# ---- one trial --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diagnosis")


@pytest.mark.slow
def test_a_trial_from_end_to_end(folder: Path) -> None:
    """A rate thirty times too high is seen, kept, and weighed the same from what is kept."""
    found = run_trial("lr_jump", "strong", "small", 5, folder)
    json.dumps(found, allow_nan=False)
    assert found["cause"] == "lr_too_high"
    assert found["seen_by"] == "action"
    assert found["strike_step"] <= found["onset_step"] <= found["last_step"]
    assert len(found["losses"]) == found["last_step"] - found["first_step"] + 1
    assert "unjudged" not in found
    key = key_of("lr_jump", "strong", "small", 5)
    store = Results(folder / "trials.jsonl")
    store.add(key, found)
    assert look_anew(store, [key]) == 0
    again = run_trial("lr_jump", "strong", "small", 5, folder)
    assert again == found, "a trial is a function of its seed"


@pytest.mark.slow
def test_a_fault_of_the_data_changes_no_step_before_it(folder: Path) -> None:
    healthy = run_trial("healthy", "as is", "small", 5, folder)
    struck = run_trial("random_bytes", "strong", "small", 5, folder)
    before = struck["strike_step"] - struck["first_step"]
    assert struck["losses"][:before] == healthy["losses"][:before]
    assert struck["losses"][before] > healthy["losses"][before]
    assert healthy["seen_by"] != "action"


@pytest.mark.slow
def test_experiments_of_a_trial_are_made_on_its_own_states(folder: Path) -> None:
    """Moments that were damaged in the run are so in its present state, and in no replay."""
    found = run_trial("optimizer_moments", "strong", "small", 6, folder, with_experiments=True)
    json.dumps(found, allow_nan=False)
    without = run_trial("optimizer_moments", "strong", "small", 6, folder)
    settled = found.pop("settled")
    assert found == without, "experiments change nothing of what signals say"
    outcomes = {one["experiment"]: one["outcome"] for one in settled["results"]}
    assert outcomes
    assert outcomes.get("earlier_state", "stays_away") == "stays_away"
    assert outcomes.get("replay", "stays_away") == "stays_away"
    assert settled["exact"] is not False
    assert 0 < settled["num_steps"] <= BUDGET_STEPS + 50
    case = Cases(folder / "cases").load(key_of("optimizer_moments", "strong", "small", 6))
    assert settled_anew(settled, case)["ranking"] == settled["ranking"]


def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SIZES", {"small": {"width": 16, "depth": 1}})


@pytest.mark.slow
def test_an_anchor_is_trained_once_and_appears_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tiny(monkeypatch)
    one = runs.anchor("small", "plain", 0, tmp_path)
    (one.run_dir / "mark").touch()
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    again = runs.anchor("small", "plain", 0, tmp_path)
    assert (again.run_dir / "mark").exists()
    assert [path.name for path in tmp_path.iterdir()] == [one.run_dir.name]


def test_plans_are_frozen_and_their_generators_their_own() -> None:
    one = plan_of("lr_jump", "mild", "small", 1)
    assert one.rng("fault").random() == one.rng("fault").random()
    assert one.rng("fault").random() != one.rng("other").random()
    other = replace(one, seed=2)
    assert one.rng("fault").random() != other.rng("fault").random()


def test_settings_by_hand_exist() -> None:
    hands: Mapping[str, Any] = plans.BY_HAND
    for kind, levels in hands.items():
        assert set(levels) == set(plans.LEVELS)
        assert kind in members("faults")
