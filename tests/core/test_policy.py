"""Each rung, budgets, and the promise that nothing that has failed is repeated."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.catalog import make
from foreshock.core.action import Plan
from foreshock.core.cause import Candidate, Diagnosis
from foreshock.core.confirmation import Tally
from foreshock.core.errors import ConfigError
from foreshock.core.incident import Incident, PlanRecord
from foreshock.core.ladder import RUNGS
from foreshock.core.policy import Policy, Situation
from foreshock.core.snapshot import Health, SnapshotRef


def blamed(cause: str, *, data: float = 0.9, onset: int = 95) -> Diagnosis:
    def candidate(name: str, probability: float, at_fault: bool) -> Candidate:
        return Candidate(
            cause=name, probability=probability, evidence=(), data_may_be_at_fault=at_fault,
            settled_by="an experiment",
        )  # fmt: skip

    ranked = sorted(
        [candidate(cause, max(data, 1 - data), data >= 0.5),
         candidate("rest", min(data, 1 - data), data < 0.5)],
        key=lambda one: -one.probability,
    )  # fmt: skip
    return Diagnosis(
        onset_step=onset, alarm_step=97, loss_moved_step=96, first_mover="loss/global",
        candidates=tuple(ranked), path=(),
    )  # fmt: skip


def ref(step: int, health: Health | None = None) -> SnapshotRef:
    return SnapshotRef(
        id=f"s{step}", attempt=1, step=step, position=8 * step, durable=True, digest="",
        health=health or Health(),
    )  # fmt: skip


REFS = [ref(step) for step in range(0, 100, 10)]
NOW = Situation(
    step=99, lag_steps=1, diagnosis=blamed("data_batch"), must_act=False, only_gradients=False,
    consecutive_skips=0, handled_by_scaler=False, gradient_limit=5.0, incident=None,
    snapshots=REFS, position=808, num_rollbacks=0,
)  # fmt: skip


def after(*plans: Plan, onset: int = 95) -> Incident:
    records = [
        PlanRecord(id=place, attempt=place, plan=plan, step=99, position=800, finished=True)
        for place, plan in enumerate(plans, 1)
    ]
    return Incident(
        id=1, attempt=1, onset_step=onset, alarm_step=97, last_alarm_step=99, loss_moved_step=96,
        first_mover="loss/global", cause="data_batch", diagnosis={}, plans=records,
    )  # fmt: skip


def decided(policy: Policy, now: Situation) -> Plan:
    plan = policy.decide(now)
    assert plan is not None
    return plan


def orders(plan: Plan) -> dict[str, dict[str, Any]]:
    return {call.name: call.arguments for call in plan.actions}


# ---- the rungs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alarmed", "still", "incident", "skips", "due"),
    [
        (2, True, False, 0, False), (3, True, False, 0, True), (3, False, False, 0, False),
        (1, True, True, 0, False), (2, True, True, 0, True),
        (0, False, False, 3, False), (0, False, False, 4, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rate", [0.0, 0.005])
def test_when_an_episode_is_due(rate, alarmed, still, incident, skips, due) -> None:
    told = {"still_alarmed": still, "in_incident": incident, "skips": skips}
    assert Policy().due([Tally(alarmed, rate)], **told) is due


@pytest.mark.parametrize(
    ("rate", "needed", "again"), [(0.02, 5, 4), (1 / 12, 7, 6), (0.2, 9, 8), (1.0, 10, 10)]
)
def test_a_run_of_many_outliers_needs_more_alarmed_steps(rate, needed, again) -> None:
    told: dict[str, Any] = {"still_alarmed": True, "skips": 0}
    for in_incident, fewest in ((False, needed), (True, again)):
        too_few, enough = Tally(fewest - 1, rate), Tally(fewest, rate)
        assert not Policy().due([too_few], in_incident=in_incident, **told)
        assert Policy().due([too_few, enough], in_incident=in_incident, **told)
    assert Policy().due([], in_incident=False, **{**told, "skips": 4})


def test_data_suspect_goes_back_and_sets_its_window_aside_first() -> None:
    plan = decided(Policy(), NOW)
    assert (plan.rung, plan.target_step) == ("rollback", 90)
    assert [call.name for call in plan.actions] == ["quarantine", "rollback"]
    window = orders(plan)["quarantine"]
    assert (window["start"], window["stop"]) == (720, 808)
    assert orders(plan)["rollback"] == {"snapshot_id": "s90", "step": 90}
    assert "720 to 807" in plan.why


def test_data_not_suspect_is_trained_again() -> None:
    plan = decided(Policy(), replace(NOW, diagnosis=blamed("optimizer_state_corrupt", data=0.1)))
    assert [call.name for call in plan.actions] == ["rollback"]
    assert "trained again" in plan.why


def test_a_rate_too_high_is_lowered_at_once() -> None:
    plan = decided(Policy(lr_factor=0.25), replace(NOW, diagnosis=blamed("lr_too_high", data=0.1)))
    rate = orders(plan)["scale_lr"]
    assert (plan.rung, rate["factor"], rate["first_step"]) == ("lower_lr", 0.25, 91)
    assert rate["hold_steps"] > 0
    assert rate["ramp_steps"] > 0


def test_benign_is_watched_on_unless_the_run_must_act() -> None:
    benign = replace(NOW, diagnosis=blamed("benign", data=0.1))
    assert Policy().decide(benign) is None
    assert decided(Policy(), replace(benign, must_act=True)).rung == "rollback"


GRADIENTS = replace(NOW, only_gradients=True)


def test_gradients_alone_are_skipped_first() -> None:
    plan = decided(Policy(skip_hold_steps=50), GRADIENTS)
    assert (plan.rung, plan.target_step) == ("skip", None)
    assert orders(plan) == {"skip_update": {"limit": 5.0, "first_step": 101, "last_step": 150}}


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_a_lowered_gate_holds_for_all_of_its_steps(lag: int) -> None:
    plan = decided(Policy(skip_hold_steps=1), replace(GRADIENTS, lag_steps=lag))
    arguments = orders(plan)["skip_update"]
    assert arguments["first_step"] == arguments["last_step"] == 100 + lag


def test_skipping_is_given_its_chance_and_then_not_repeated() -> None:
    policy = Policy()
    tried = replace(GRADIENTS, incident=after(decided(policy, GRADIENTS)))
    assert policy.decide(replace(tried, step=101, consecutive_skips=1)) is None
    assert policy.decide(replace(tried, step=150, consecutive_skips=3)) is None
    for failed in (
        replace(tried, step=104, consecutive_skips=4),
        replace(tried, step=151),
        replace(tried, step=102, only_gradients=False),
        replace(tried, step=102, must_act=True),
    ):
        assert decided(policy, failed).rung == "rollback"


def test_without_a_limit_there_is_nothing_to_skip_by() -> None:
    assert decided(Policy(), replace(GRADIENTS, gradient_limit=None)).rung == "rollback"


def test_an_overflow_is_left_to_the_scaler_even_after_many_skips() -> None:
    scaled = replace(GRADIENTS, handled_by_scaler=True, consecutive_skips=9)
    assert Policy().decide(scaled) is None
    assert decided(Policy(), replace(scaled, must_act=True)).rung == "rollback"


def test_too_many_skips_go_back() -> None:
    assert decided(Policy(), replace(GRADIENTS, consecutive_skips=4)).rung == "rollback"


def test_a_loop_that_cannot_go_back_is_handed_over_but_may_skip() -> None:
    policy = Policy(can_rollback=False)
    assert decided(policy, NOW).rung == "halt"
    assert decided(policy, GRADIENTS).rung == "skip"
    assert policy.actions == {"skip_update", "halt"}


@pytest.mark.parametrize("now", [NOW, GRADIENTS, replace(NOW, must_act=True)])
def test_who_only_watches_never_acts(now: Situation) -> None:
    assert Policy(watch_only=True).decide(now) is None
    assert Policy(watch_only=True).actions == frozenset()


# ---- going back again --------------------------------------------------------------------


def chain(policy: Policy, now: Situation, times: int, step: int = 8) -> list[Plan]:
    plans: list[Plan] = []
    for _ in range(times):
        plans.append(decided(policy, replace(now, incident=after(*plans) if plans else None)))
        stops = [orders(plan).get("quarantine", {"stop": 0})["stop"] for plan in plans]
        now = replace(now, position=max(now.position, *stops) + step)
    return plans


def test_a_suspect_window_doubles_and_the_state_is_doubted_in_the_end() -> None:
    plans = chain(Policy(), NOW, 6)
    windows = [orders(plan)["quarantine"] for plan in plans]
    sizes = [window["stop"] - window["start"] for window in windows]
    assert all(b > 1.9 * a for a, b in pairwise(sizes))
    assert [plan.target_step for plan in plans] == [90, 90, 90, 90, 80, 70]
    assert ["scale_lr" in orders(plan) for plan in plans] == [False] * 4 + [True] * 2


def test_where_data_is_not_suspect_each_try_goes_further_back() -> None:
    plans = chain(Policy(), replace(NOW, diagnosis=blamed("optimizer_state_corrupt", data=0.1)), 4)
    assert [plan.rung for plan in plans] == ["rollback", "reset_moments", "rollback", "rollback"]
    assert [plan.target_step for plan in plans] == [90, 80, 70, 60]
    # Three failures in, the diagnosis that cleared the data is doubted.
    assert ["quarantine" in orders(plan) for plan in plans] == [False, False, False, True]


@given(
    st.sampled_from(["data_batch", "optimizer_state_corrupt", "lr_too_high", "unknown"]),
    st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(1, 10),
    st.integers(1, 100),
)  # fmt: skip
def test_nothing_that_failed_is_repeated(cause, data, lookahead, num_refs, step) -> None:
    now = replace(NOW, diagnosis=blamed(cause, data=data), snapshots=REFS[:num_refs])
    policy = Policy(lookahead=lookahead)
    plans = chain(policy, now, policy.max_rollbacks_per_incident, step)
    if "halt" in [plan.rung for plan in plans]:
        plans = plans[: [plan.rung for plan in plans].index("halt") + 1]
    seen = [json.dumps(plan.to_json()["actions"]) for plan in plans]
    assert len(set(seen)) == len(seen)
    for plan in plans:
        assert plan.target_step is not None or plan.rung == "halt"


def test_the_onset_of_the_incident_holds_where_the_new_one_is_later() -> None:
    plan = decided(Policy(), replace(NOW, incident=after(onset=85), diagnosis=blamed("unknown")))
    assert plan.target_step == 80


@settings(max_examples=40)
@given(st.integers(1, 200_000), st.integers(1, 64), st.integers(2, 12))
def test_looking_ahead_reaches_the_end_of_a_bad_region_of_any_length(
    length: int, batch: int, confirm: int
) -> None:
    """The run consumes data in order; each try trains `confirm` bad batches before its plan."""
    many = {"rollback": replace(RUNGS["rollback"], tries=100)}
    policy = Policy(
        max_rollbacks_per_incident=100, max_rollbacks=100, rungs={**RUNGS, **many}, preferences={}
    )
    start = 1000
    end = start + length
    position, plans = start + confirm * batch, []
    while True:
        now = replace(NOW, position=position, incident=after(*plans) if plans else None,
                      snapshots=[replace(ref(90), position=start)])  # fmt: skip
        plan = decided(policy, now)
        assert plan.rung == "rollback"
        plans.append(plan)
        stop = orders(plan)["quarantine"]["stop"]
        if stop >= end:
            break
        position = stop + confirm * batch
    assert len(plans) <= 2 + math.log2(1 + length / (confirm * batch))
    assert stop - start <= 2 * length + 2 * confirm * batch


# ---- budgets ------------------------------------------------------------------------------


def test_budgets_end_in_a_handover_note() -> None:
    policy = Policy(max_rollbacks_per_incident=3)
    plans = chain(policy, NOW, 4)
    assert [plan.rung for plan in plans] == ["rollback"] * 3 + ["halt"]
    note = orders(plans[-1])["halt"]["note"]
    assert "3 rollbacks did not cure this incident" in note
    assert "data_batch (90%)" in note
    assert "What would settle it: an experiment" in note
    assert note.count("back to step 90") == 3
    spent = decided(Policy(max_rollbacks=7), replace(NOW, num_rollbacks=7))
    assert (spent.rung, spent.target_step) == ("halt", None)
    assert decided(Policy(max_rollbacks=8), replace(NOW, num_rollbacks=7)).rung == "rollback"


def test_without_a_healthy_state_the_reasons_are_told() -> None:
    ill = ref(90, Health(concerns=("the loss scale is 0.5, below 1",)))
    plan = decided(Policy(), replace(NOW, snapshots=[ill, ref(95)]))
    assert plan.rung == "halt"
    assert "s90: the loss scale is 0.5, below 1" in plan.why
    assert "s95: taken at step 95" in plan.why
    assert "no snapshot at all" in decided(Policy(), replace(NOW, snapshots=[])).why


# ---- plans and settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    "now", [NOW, GRADIENTS, replace(NOW, snapshots=[]), replace(NOW, diagnosis=blamed("unknown"))]
)
def test_a_plan_survives_strict_json_and_names_actions_that_exist(now: Situation) -> None:
    plan = decided(Policy(), now)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan
    for call in plan.actions:
        assert make("actions", call.name, **call.arguments).name == call.name


@pytest.mark.parametrize(
    "setting",
    [
        {"confirm_steps": 0}, {"confirm_again_steps": 0}, {"quiet_steps": 0}, {"settle_steps": -1},
        {"doubt_steps": 0}, {"skip_hold_steps": 0}, {"max_skips_in_a_row": -1},
        {"max_rollbacks": -1}, {"max_rollbacks_per_incident": -1}, {"data_suspicion": 1.1},
        {"data_suspicion": math.nan}, {"lr_factor": 0.0}, {"lr_factor": 1.5},
        {"lr_factor": math.nan}, {"lookahead": -0.1}, {"lookahead": math.nan},
        {"lookahead": math.inf},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_by_name(setting: dict[str, Any]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(ConfigError, match=f"Policy.{name} is {value}"):
        Policy(**setting)
