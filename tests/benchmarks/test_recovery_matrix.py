"""The fault matrix: what a trial cost and whether it recovered, on hand-made inputs; one trial."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.recovery import anchors
from benchmarks.recovery.anchors import ANCHOR_STEP, anchor
from benchmarks.recovery.matrix_account import (
    STEPS_LOST_BY_PRACTICE,
    cost_of,
    healthy_ends,
    samples_lost,
    tokens_lost,
    why_not_recovered,
)
from benchmarks.recovery.matrix_faults import FAULTS, draw
from benchmarks.recovery.matrix_figures import figures
from benchmarks.recovery.matrix_program import (
    BATCH_SIZE,
    CONTEXT,
    matrix_program,
    replace_steps,
)
from benchmarks.recovery.matrix_trial import run_trial
from foreshock.core.fault import DataFault
from foreshock.core.program import Settings
from foreshock.driver import build


def plan(incident: int, target: int | None) -> dict[str, Any]:
    return {"kind": "plan", "incident": incident, "plan": {"target_step": target}}


def began(attempt: int, step: int) -> dict[str, Any]:
    return {"kind": "attempt_started", "attempt": attempt, "step": step}


def skip(attempt: int, step: int) -> dict[str, Any]:
    return {"kind": "skip", "attempt": attempt, "step": step}


def steps(attempt: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(attempt, step) for step in range(first, last + 1)]


def trial(**changed: Any) -> dict[str, Any]:
    """One that recovered without anything to report."""
    usual = {
        "anchor": 0,
        "ended": True,
        "halted": None,
        "last_step": 460,
        "finite": True,
        "largest_weight": 1.0,
        "held_out": 2.0,
        "recomputed_steps": 0,
        "skipped_steps": 0,
        "held_before": 0,
        "held_after": 0,
        "incidents": [],
    }
    return usual | changed


INCIDENT = {
    "id": 1,
    "outcome": "recovered",
    "cause": "data_batch",
    "rungs": ["rollback"],
    "targets": [280],
}


# ---- what it cost -----------------------------------------------------------------------


def test_a_run_without_a_rollback_costs_nothing() -> None:
    cost = cost_of([began(2, 10)], [*steps(1, 1, 10), *steps(2, 11, 20)])
    assert (cost.recomputed, cost.skipped, cost.undone) == (0, 0, {})


def test_what_a_rollback_undid_is_counted_step_by_step() -> None:
    records = [began(1, 0), plan(1, 10), began(2, 10)]
    cost = cost_of(records, [*steps(1, 1, 15), *steps(2, 11, 30)])
    assert cost.undone == {1: 5}


def test_each_rollback_is_put_down_to_its_incident() -> None:
    records = [plan(1, 10), began(2, 10), plan(1, 4), began(3, 4), plan(2, 20), began(4, 20)]
    executed = [*steps(1, 1, 12), *steps(2, 11, 13), *steps(3, 5, 22), *steps(4, 21, 30)]
    cost = cost_of(records, executed)
    # incident 1: 11 and 12, then 11 to 13 and what was left of attempt 1 beyond step 4
    assert cost.undone == {1: 2 + 3 + 6, 2: 2}
    assert cost.recomputed == 13
    assert len(executed) - cost.recomputed == 30, "what is left is one step each"


def test_going_back_behind_the_anchor_costs_the_steps_of_the_anchor() -> None:
    records = [began(2, 100), plan(1, 40), began(3, 40)]
    cost = cost_of(records, [*steps(1, 1, 100), *steps(2, 101, 110), *steps(3, 41, 120)])
    assert cost.recomputed == 60 + 10


def test_a_plan_that_does_not_go_back_undoes_nothing() -> None:
    """The attempt that a resume begins is no rollback of the incident before."""
    records = [plan(1, None), began(2, 10)]
    assert cost_of(records, [*steps(1, 1, 10), *steps(2, 11, 12)]).undone == {}


def test_what_a_resume_lost_is_no_incidents() -> None:
    records = [plan(1, 10), began(2, 10), began(3, 8)]
    cost = cost_of(records, [*steps(1, 1, 12), *steps(2, 11, 14), *steps(3, 9, 20)])
    assert cost.undone == {1: 2, 0: 4 + 2}


def test_only_skips_that_survive_are_counted_beside_what_was_undone() -> None:
    records = [skip(1, 3), skip(1, 12), plan(1, 10), began(2, 10), skip(2, 11), skip(2, 12)]
    cost = cost_of(records, [*steps(1, 1, 13), *steps(2, 11, 20)])
    assert (cost.recomputed, cost.skipped) == (3, 3)


def test_samples_lost_are_steps_of_samples_and_what_is_held() -> None:
    one = trial(recomputed_steps=10, skipped_steps=2, held_before=300, held_after=20)
    assert samples_lost(one, 16) == (12 * 16 + 300, 12 * 16 + 20)


def test_tokens_lost_are_medians_against_three_hundred_steps() -> None:
    assert STEPS_LOST_BY_PRACTICE == 300
    lost = [(5, 0, 0), (10, 160, 0), (20, 640, 320)]
    trials = [
        trial(incidents=[INCIDENT], recomputed_steps=steps, held_before=before, held_after=after)
        for steps, before, after in lost
    ]
    found = tokens_lost(trials, batch_size=16, tokens=64)
    assert found["trials"] == 3
    assert found["fixed_practice"] == 300 * 16 * 64
    assert found["before_release"] == {
        "median": 320 * 64,
        "worst": 960 * 64,
        "times_fewer": 15.0,
    }
    assert found["after_release"] == {"median": 160 * 64, "worst": 640 * 64, "times_fewer": 30.0}


def test_trials_in_which_nothing_was_done_do_not_flatter_the_median() -> None:
    busy = trial(incidents=[INCIDENT], recomputed_steps=30)
    skipped = trial(skipped_steps=30)
    found = tokens_lost([trial(), trial(), busy, skipped], batch_size=16, tokens=64)
    assert found["trials"] == 2
    assert found["after_release"]["times_fewer"] == 10.0
    assert "after_release" not in tokens_lost([trial()], batch_size=16, tokens=64)


# ---- whether it recovered ---------------------------------------------------------------

ENDS = healthy_ends({0: [1.99, 2.01, 2.0, 2.0, 2.0], 1: [3.0, 3.0, 3.0, 3.0, 3.0]})


def test_the_bound_is_three_standard_deviations_of_one_more_end() -> None:
    """Against the closed form with a t quantile from tables: t(0.99865, 8) = 4.277."""
    assert ENDS.freedom == 8
    assert ENDS.spread == pytest.approx(math.sqrt(0.0002 / 8))
    assert ENDS.mean == {0: pytest.approx(2.0), 1: pytest.approx(3.0)}
    expected = 4.277 * math.sqrt(0.0002 / 8) * math.sqrt(1.2)
    assert ENDS.bound[0] - 2.0 == pytest.approx(expected, rel=1e-3)


def test_few_twins_give_a_wider_bound() -> None:
    two = healthy_ends({0: [1.99, 2.01]})
    many = healthy_ends({0: [1.99, 2.01] * 20})
    assert two.bound[0] > 5 * (many.bound[0] - 2.0) + 2.0
    with pytest.raises(ValueError, match="two healthy ends"):
        healthy_ends({0: [2.0]})


def test_healthy_ends_seldom_exceed_the_bound() -> None:
    rng = np.random.default_rng(0)
    beyond = 0
    for _ in range(4000):
        ends = rng.normal(size=(4, 6))
        bound = healthy_ends({seed: row[:5].tolist() for seed, row in enumerate(ends)}).bound
        beyond += sum(ends[seed, 5] > bound[seed] for seed in range(4))
    assert 5 <= beyond <= 45, "0.135 % of 16,000 is 22"


def test_a_trial_like_its_twins_has_recovered() -> None:
    assert why_not_recovered(trial(), ENDS) == []
    assert why_not_recovered(trial(held_out=ENDS.bound[0]), ENDS) == []
    assert why_not_recovered(trial(held_out=1.0), ENDS) == [], "better is no failure"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"held_out": ENDS.bound[0] + 1e-6}, r"held-out loss \+0\.02.* allowed"),
        ({"held_out": None}, "not finite"),
        ({"finite": False}, "a weight or a moment is not finite"),
        ({"largest_weight": 6e36}, r"a weight of 6e\+36 is left"),
        ({"halted": "nothing is left to try", "ended": False}, "halted: nothing is left"),
        ({"ended": False, "last_step": 300}, "stopped at step 300"),
        ({"incidents": [INCIDENT | {"outcome": None}]}, "incident 1 was still open"),
    ],
)
def test_each_way_of_not_recovering_is_named(changed: dict[str, Any], said: str) -> None:
    reasons = why_not_recovered(trial(**changed), ENDS)
    assert len(reasons) == 1
    assert re.search(said, reasons[0])


def test_a_trial_is_held_to_the_twins_of_its_own_anchor() -> None:
    assert why_not_recovered(trial(held_out=3.0, anchor=1), ENDS) == []
    assert why_not_recovered(trial(held_out=3.0, anchor=0), ENDS)


def test_figures_count_what_recovered_and_what_did_not() -> None:
    kept: dict[str, Any] = {
        f"matrix/twin/0/{nth}": end for nth, end in enumerate((1.99, 2.01, 2.0, 2.0, 2.0))
    }
    kept["matrix/trial/bit_flip/00"] = trial(incidents=[INCIDENT], recomputed_steps=10)
    kept["matrix/trial/bit_flip/01"] = trial(incidents=[INCIDENT], held_out=2.5)
    kept["matrix/trial/bad_region/00"] = trial(skipped_steps=5)
    kept["matrix/unguarded/bit_flip/00"] = {"anchor": 0, "held_out": None}
    kept["matrix/unguarded/bit_flip/01"] = {"anchor": 0, "held_out": 2.0}
    kept["matrix/healthy/00"] = healthy(outlier_steps=200, rollbacks=2, plans=[[130, "skip", None]])
    kept["matrix/healthy/01"] = healthy()
    found = json.loads(json.dumps(figures(kept), allow_nan=False))
    recovered = found["recovered"]
    assert recovered["bit_flip"]["trials"] == 2
    assert recovered["bit_flip"]["recovered"] == 1
    assert recovered["bit_flip"]["wasted_steps"] == [0, 10]
    assert recovered["all"]["recovered"] == 2
    assert list(recovered["failures"]) == ["bit_flip/01"]
    assert found["tokens_lost_median"]["all"]["trials"] == 2
    assert found["unguarded"]["bit_flip"] == {"runs": 2, "hurt": 1}
    assert found["healthy"]["runs"] == 2
    assert found["healthy"]["runs_with_a_rollback"] == 1
    assert found["healthy"]["most_outlier_steps"] == 200
    assert list(found["healthy"]["acted_on"]) == ["00"]


def healthy(**changed: Any) -> dict[str, Any]:
    usual = {
        "steps": 300,
        "outlier_steps": 0,
        "ended": True,
        "halted": None,
        "finite": True,
        "rollbacks": 0,
        "incidents": 0,
        "plans": [],
        "skipped_steps": 0,
        "alarmed_steps": 3,
    }
    return usual | changed


# ---- what is drawn ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAULTS)
def test_a_seed_draws_the_same_fault_again_and_another_one_another(kind: str) -> None:
    assert draw(kind, 3, 240) == draw(kind, 3, 240)
    assert len({str(draw(kind, seed, 240).to_json()) for seed in range(20)}) > 10
    assert all(240 < draw(kind, seed, 240).step <= 300 for seed in range(20))


def test_a_bad_region_is_what_the_run_meets_in_those_steps_and_nothing_else() -> None:
    clean = build(matrix_program, Settings(seed=5, max_steps=10))
    replaced = replace_steps(clean, {3: BATCH_SIZE, 5: 2}, lambda windows: windows * 0)
    settings = Settings(seed=5, max_steps=10, overrides={"replaced": replaced})
    program = build(matrix_program, settings)
    spoiled = [int((program.stream.next_batch().data == 0).all(dim=1).sum()) for _ in range(8)]
    assert spoiled == [0, 0, BATCH_SIZE, 0, 2, 0, 0, 0]
    known = clean.stream.order.fingerprint
    assert program.stream.order.fingerprint == known, "an anchor can be taken up with it"


def test_the_data_of_a_fault_of_the_state_are_clean() -> None:
    clean = build(matrix_program, Settings(seed=5, max_steps=10))
    for kind in FAULTS:
        drawn = draw(kind, 0, 20)
        touched = sum(map(len, drawn.replaced(clean).values()))
        assert touched == drawn.num_steps * BATCH_SIZE
        assert isinstance(drawn.fault, DataFault) == bool(touched)


@pytest.mark.slow
def test_a_trial_is_the_same_again_and_leaves_its_anchor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One real trial, short: the moments are damaged, caught, undone, and nothing is lost."""
    monkeypatch.setattr(anchors, "END_STEP", 340)
    monkeypatch.setattr("benchmarks.recovery.matrix_trial.END_STEP", 340)
    one = anchor(0, tmp_path)
    before = {p: p.read_bytes() for p in sorted(one.run_dir.rglob("*")) if p.is_file()}
    drawn = draw("corrupted_moments", 0, ANCHOR_STEP)
    first, again = run_trial(one, drawn, budget=4), run_trial(one, drawn, budget=4)
    assert first == again
    assert before == {p: p.read_bytes() for p in sorted(one.run_dir.rglob("*")) if p.is_file()}
    assert first["ended"]
    assert first["finite"]
    assert [incident["outcome"] for incident in first["incidents"]] == ["recovered"]
    assert first["executed_steps"] == 340 - ANCHOR_STEP + first["recomputed_steps"]
    assert 0 < first["recomputed_steps"] < 60
    assert first["held_out"] == pytest.approx(anchors.end_of(one), abs=0.1)
    assert samples_lost(first, BATCH_SIZE)[1] * CONTEXT < 300 * BATCH_SIZE * CONTEXT / 5
