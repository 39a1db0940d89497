"""The ladder as data: preferences, budgets, cool-downs, the same place; nothing twice."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.catalog import members
from foreshock.core.action import ActionCall, Plan
from foreshock.core.errors import ConfigError
from foreshock.core.incident import Incident, Outcome
from foreshock.core.ladder import LADDER, RUNGS, order, rung
from foreshock.core.policy import Policy, Situation
from foreshock.core.preferences import PREFERENCES
from foreshock.core.snapshot import SnapshotRef
from tests.core.test_policy import GRADIENTS, NOW, REFS, after, blamed, decided, orders, ref

CAUSES = [
    "data_batch", "optimizer_state_corrupt", "lr_too_high", "numeric_overflow", "weight_corruption",
    "unknown", "benign",
]  # fmt: skip


def closed(*plans: Plan, onset: int = 95, alarm: int = 99) -> Incident:
    """An earlier incident that has recovered."""
    found = after(*plans, onset=onset)
    found.outcome, found.closed_step, found.last_alarm_step = Outcome.RECOVERED, alarm + 30, alarm
    return found


def climb(policy: Policy, now: Situation, most: int = 40) -> list[Plan]:
    """Every plan of an incident that nothing cures, up to the halt."""
    plans: list[Plan] = []
    before = now.num_rollbacks
    while len(plans) < most:
        incident = after(*plans) if plans else None
        back = sum(plan.target_step is not None for plan in plans)
        plan = decided(policy, replace(now, incident=incident, num_rollbacks=before + back))
        plans.append(plan)
        if plan.rung == "halt":
            return plans
        now = replace(now, position=max(now.position, stop_of(plan)) + 16)
    raise AssertionError("no end")


def stop_of(plan: Plan) -> int:
    return orders(plan).get("quarantine", {"stop": 0})["stop"]


# ---- order ----------------------------------------------------------------------------


def test_the_whole_ladder_is_climbed_to_its_end() -> None:
    rungs = [plan.rung for plan in climb(Policy(), replace(NOW, diagnosis=blamed("unknown")))]
    assert rungs == [
        *["rollback"] * 4, *["rollback_further"] * 4, "tighten_clip", "reset_moments",
        "raise_epsilon", "lower_beta2", "perturb_order", "perturb_weights", "halt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "begins"),
    [
        ("data_batch", ["rollback", "rollback", "rollback", "rollback", "rollback_further"]),
        ("lr_too_high", ["lower_lr", "lower_lr", "lower_lr", "rollback"]),
        ("optimizer_state_corrupt", ["rollback", "reset_moments", "rollback", "rollback"]),
        ("weight_corruption", ["rollback", "rollback", "rollback", "rollback"]),
        ("numeric_overflow", ["rollback", "tighten_clip", "rollback"]),
        ("unknown", ["rollback", "rollback"]),
    ],
)
def test_a_cause_has_its_own_beginning(cause: str, begins: list[str]) -> None:
    plans = climb(Policy(), replace(NOW, diagnosis=blamed(cause, data=0.1)))
    assert [plan.rung for plan in plans][: len(begins)] == begins


def jumped(rate: float | None = 2e-3) -> Situation:
    found = replace(blamed("lr_too_high", data=0.1), lr_before_jump=rate)
    return replace(NOW, diagnosis=found)


def test_a_rate_that_jumped_is_kept_to_what_it_was_and_then_lowered() -> None:
    plans = climb(Policy(), jumped())
    rungs = [plan.rung for plan in plans]
    assert rungs[:5] == ["cap_lr", "lower_lr", "lower_lr", "lower_lr", "rollback"]
    assert rungs.count("cap_lr") == 1
    cap = {"max_lr": 2e-3, "first_step": 91, "hold_steps": 1000, "ramp_steps": 1000}
    assert orders(plans[0])["cap_lr"] == cap
    assert "quarantine" not in orders(plans[0])
    assert "at most 0.002, as before its jump for 1000 steps" in plans[0].why
    # Further back, the cap goes along: nothing is trained at a rate that has failed.
    targets = [plan.target_step for plan in plans[:3]]
    assert targets[1] is not None
    assert targets[1] < 90
    kept = orders(plans[1])["cap_lr"]
    assert kept["first_step"] == targets[1] + 1
    assert (kept["hold_steps"], kept["ramp_steps"]) == (90 - targets[1], 0)


def test_a_cap_is_no_factor_that_a_budget_limits() -> None:
    assert climb(Policy(min_lr_factor=1.0), jumped())[0].rung == "cap_lr"


@pytest.mark.parametrize("pressed", [False, True])
def test_a_cap_is_passed_over_where_no_rate_has_jumped(pressed: bool) -> None:
    now = replace(jumped(None), must_act=pressed)
    assert decided(Policy(), now).rung == "lower_lr"
    policy = Policy(ladder=("cap_lr", "rollback", "halt"), preferences={})
    assert decided(policy, now).rung == "rollback"


def test_what_a_loop_cannot_do_is_passed_over() -> None:
    policy = Policy().without(frozenset({"reset_moments", "tighten_clip"}))
    plans = climb(policy, replace(NOW, diagnosis=blamed("optimizer_state_corrupt", data=0.1)))
    assert "reset_moments" not in [plan.rung for plan in plans]
    assert [plan.rung for plan in plans][:4] == ["rollback"] * 4


def test_a_diagnosis_that_changes_goes_on_from_what_was_tried() -> None:
    first = decided(Policy(), NOW)
    now = replace(NOW, incident=after(first), position=900)
    changed = decided(Policy(), replace(now, diagnosis=blamed("optimizer_state_corrupt", data=0.1)))
    assert changed.rung == "reset_moments"


def test_every_rung_says_what_it_does() -> None:
    plans = {plan.rung: plan for plan in climb(Policy(), NOW)}
    assert "clipped to 0.3 for 500 steps and back over 500" in plans["tighten_clip"].why
    assert "moments are reset (all groups)" in plans["reset_moments"].why
    assert "beta2 is lowered to 0.95" in plans["lower_beta2"].why
    assert "multiplied by 0.5 for 500 steps" in plans["rollback_further"].why
    assert orders(plans["perturb_order"])["perturb_order"]["position"] == 8 * (
        plans["perturb_order"].target_step or 0
    )


def test_rungs_in_place_are_for_runs_that_may_stay_as_they_are() -> None:
    here = rung(order("tighten_clip", max_norm=0.5))
    policy = Policy(rungs={**RUNGS, "here": here}, ladder=("here", "rollback", "halt"))
    now = replace(NOW, diagnosis=blamed("unknown"))
    plan = decided(policy, now)
    assert (plan.rung, plan.target_step) == ("here", None)
    assert orders(plan)["tighten_clip"] == {"max_norm": 0.5, "first_step": 101}
    assert decided(policy, replace(now, must_act=True)).rung == "rollback"


def test_a_pause_waits_for_a_person_with_the_whole_story() -> None:
    policy = Policy(ladder=("rollback", "pause", "halt"), max_rollbacks_per_incident=1)
    plans = climb(policy, replace(NOW, diagnosis=blamed("unknown"), must_act=True))
    assert [plan.rung for plan in plans] == ["rollback", "pause", "halt"]
    reason = orders(plans[1])["pause"]["reason"]
    assert "Paused at step 99" in reason
    assert "unknown (90%)" in reason
    assert "back to step 90" in reason


# ---- budgets ---------------------------------------------------------------------------


def test_each_refusal_names_its_budget() -> None:
    unknown = replace(NOW, diagnosis=blamed("unknown"))
    for setting, now, says in [
        ({"max_rollbacks_per_incident": 2}, unknown, "max_rollbacks_per_incident"),
        ({"max_rollbacks": 2}, unknown, "(max_rollbacks)"),
        ({"max_samples_set_aside": 200}, unknown, "max_samples_set_aside"),
        ({"max_share_set_aside": 0.1}, replace(unknown, num_samples=2000), "max_share_set_aside"),
        ({"max_steps_retrained": 20}, unknown, "max_steps_retrained"),
        ({"min_lr_factor": 0.3}, replace(NOW, diagnosis=blamed("lr_too_high")), "min_lr_factor"),
    ]:
        plans = climb(Policy(**setting), now)
        assert says in plans[-1].why, (setting, plans[-1].why)
        assert plans[-1].why in orders(plans[-1])["halt"]["note"]


def spent(plans: list[Plan]) -> dict[str, float]:
    """What plans spend, by a slow count of our own."""
    aside: set[int] = set()
    rate = np.ones(5000)  # of each step; one that is taken back over a ramp counts in full
    retrained, back = 0, 0
    for plan in plans:
        for call in plan.actions:
            if call.name == "quarantine":
                aside |= set(range(call.arguments["start"], call.arguments["stop"]))
            if call.name == "scale_lr":
                first, hold = call.arguments["first_step"], call.arguments["hold_steps"]
                rate[first : first + hold + call.arguments["ramp_steps"]] *= call.arguments[
                    "factor"
                ]
        if plan.target_step is not None:
            retrained, back = retrained + NOW.step - plan.target_step, back + 1
    return {"aside": len(aside), "factor": rate.min(), "retrained": retrained, "back": back}


@settings(max_examples=60)
@given(
    st.sampled_from(CAUSES[:-1]), st.floats(0, 1), st.integers(0, 12), st.integers(0, 8),
    st.integers(0, 3000), st.floats(0.01, 1), st.floats(0.01, 1), st.integers(0, 600),
    st.floats(0.1, 1),
)  # fmt: skip
def test_no_budget_is_overdrawn(
    cause, data, total, per_incident, samples, share, floor, retrained, factor
) -> None:
    policy = Policy(
        max_rollbacks=total, max_rollbacks_per_incident=per_incident, lr_factor=factor,
        max_samples_set_aside=samples, max_share_set_aside=share, min_lr_factor=floor,
        max_steps_retrained=retrained,
    )  # fmt: skip
    now = replace(NOW, diagnosis=blamed(cause, data=data), num_samples=4000)
    plans = climb(policy, now)
    used = spent(plans)
    assert used["back"] <= min(total, per_incident)
    assert used["aside"] <= min(samples, 4000 * share)
    assert used["factor"] >= floor * (1 - 1e-6)
    assert used["retrained"] <= retrained


def test_budgets_count_earlier_incidents_too() -> None:
    far = closed(decided(Policy(), NOW), onset=20, alarm=22)
    plan = far.plans[0].plan
    moved = replace(plan, target_step=10, actions=(
        ActionCall(name="quarantine", arguments={"start": 0, "stop": 500, "reason": ""}),
        ActionCall(name="scale_lr", arguments={"factor": 0.2, "first_step": 11}),
        ActionCall(name="rollback", arguments={"snapshot_id": "s10", "step": 10}),
    ))  # fmt: skip
    far.plans[0].plan, far.plans[0].step = moved, 40
    now = replace(NOW, earlier=[far], diagnosis=blamed("lr_too_high", data=0.9))
    assert "580" not in climb(Policy(max_samples_set_aside=600), now)[-1].why
    halt = climb(Policy(max_samples_set_aside=550), now)[0]
    assert halt.rung == "halt"
    assert "588 samples would be set aside, over 550" in halt.why
    assert climb(Policy(min_lr_factor=0.11), now)[0].rung == "rollback"
    assert climb(Policy(min_lr_factor=0.1), now)[0].rung == "lower_lr"


def test_a_rate_that_is_back_to_its_schedule_is_no_reduction() -> None:
    over = closed(decided(Policy(), NOW), onset=20, alarm=22)
    call = ActionCall(
        name="scale_lr",
        arguments={"factor": 0.2, "first_step": 11, "hold_steps": 40, "ramp_steps": 40},
    )
    over.plans[0].plan = replace(over.plans[0].plan, actions=(call,), target_step=10)
    now = replace(NOW, earlier=[over], diagnosis=blamed("lr_too_high", data=0.1))
    assert climb(Policy(min_lr_factor=0.5), now)[0].rung == "lower_lr"
    call.arguments["ramp_steps"] = 41
    assert climb(Policy(min_lr_factor=0.5), now)[0].rung == "rollback"


# ---- cool-downs ------------------------------------------------------------------------


def cooling(steps: int) -> Policy:
    rungs = {**RUNGS, "rollback": replace(RUNGS["rollback"], cooldown_steps=steps)}
    return Policy(rungs=rungs, preferences={})


def test_a_plan_has_its_chance_before_another_of_its_kind() -> None:
    """It went back to step 90, so that cool-down runs from there."""
    tried = replace(NOW, incident=after(decided(Policy(), NOW)), position=900)
    assert cooling(5).decide(replace(tried, step=94)) is None
    assert decided(cooling(5), replace(tried, step=95)).rung == "rollback"
    assert decided(cooling(5), replace(tried, step=92, must_act=True)).rung == "rollback"
    assert decided(cooling(0), replace(tried, step=92)).rung == "rollback"


def test_a_rung_that_cools_down_from_another_incident_is_passed_over() -> None:
    far = closed(decided(Policy(), NOW), onset=20, alarm=22)
    far.plans[0].plan = replace(far.plans[0].plan, target_step=10)
    now = replace(NOW, earlier=[far])
    assert decided(cooling(90), now).rung == "rollback_further"
    assert decided(cooling(89), now).rung == "rollback"
    assert decided(cooling(90), replace(now, must_act=True)).rung == "rollback"


# ---- the same place ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("onset", "returned"),
    [(79, False), (80, True), (95, True), (109, True), (110, False)],
)
def test_trouble_in_the_same_place_escalates_at_once(onset: int, returned: bool) -> None:
    """The earlier one went back to 90 and alarmed up to 99; recoveries settle in 10 steps."""
    first = decided(Policy(), NOW)
    refs = [*REFS, ref(100)]
    now = replace(
        NOW, step=onset + 4, diagnosis=blamed("data_batch", onset=onset), earlier=[closed(first)],
        snapshots=refs, position=900,
    )  # fmt: skip
    plan = decided(Policy(), now)
    assert plan.rung == ("rollback_further" if returned else "rollback")
    if returned:
        assert plan.target_step is not None
        assert plan.target_step < 90
        assert "have not lasted" in plan.why
        assert "scale_lr" in orders(plan)


def test_data_that_was_given_back_and_hurts_again_escalates() -> None:
    first = decided(Policy(), NOW)  # sets 720 to 807 aside
    now = replace(NOW, step=700, diagnosis=blamed("data_batch", onset=698), earlier=[closed(first)],
                  snapshots=[*REFS, ref(690)], position=6000)  # fmt: skip
    assert decided(Policy(), replace(now, window=(807, 815))).rung == "rollback_further"
    assert decided(Policy(), replace(now, window=(808, 816))).rung == "rollback"


def test_skipping_that_did_not_last_is_not_tried_there_again() -> None:
    skipped = decided(Policy(), GRADIENTS)
    again = replace(GRADIENTS, earlier=[closed(skipped)])
    assert decided(Policy(), again).rung == "rollback"
    elsewhere = replace(GRADIENTS, earlier=[closed(skipped, onset=20, alarm=22)])
    assert decided(Policy(), elsewhere).rung == "skip"


def test_a_preference_goes_on_after_what_did_not_last() -> None:
    first = decided(Policy(), replace(NOW, diagnosis=blamed("optimizer_state_corrupt", data=0.1)))
    assert first.rung == "rollback"
    now = replace(
        NOW, earlier=[closed(first)], diagnosis=blamed("optimizer_state_corrupt", data=0.1)
    )
    assert decided(Policy(), now).rung == "reset_moments"


def test_an_incident_that_was_handed_over_does_not_count() -> None:
    halted = closed(decided(Policy(), NOW))
    halted.outcome = Outcome.HALTED
    assert decided(Policy(), replace(NOW, earlier=[halted])).rung == "rollback"


def test_a_rung_that_halts_is_never_barred() -> None:
    prefer = {"unknown": ("rollback", "halt")}
    used = closed(replace(decided(Policy(), NOW), rung="perturb_weights"))
    now = replace(NOW, earlier=[used], diagnosis=blamed("unknown"))
    assert decided(Policy(preferences=prefer), now).rung == "halt"


# ---- nothing twice -----------------------------------------------------------------------


def essence(plan: Plan) -> str:
    """Rung and arguments, without what differs by chance."""
    incidental = ("first_step", "last_step", "snapshot_id", "reason", "note")
    kept = [
        (call.name, {k: v for k, v in call.arguments.items() if k not in incidental})
        for call in plan.actions
    ]
    return json.dumps([plan.rung, kept], sort_keys=True)


RANDOM_RUNG = st.builds(
    lambda names, tries, back, cool: rung(
        *names, tries=tries, further_back=back and "rollback" in names, cooldown_steps=cool
    ),
    st.sampled_from([
        ("quarantine", "rollback"), ("rollback",), ("scale_lr", "rollback"), ("tighten_clip",),
        (order("quarantine", lookahead=0.0), "reset_moments", "rollback"), ("skip_update",),
        ("scale_lr",), ("perturb_order", "rollback"), ("pause",),
    ]),
    st.integers(1, 6), st.booleans(), st.integers(0, 30),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_over_random_histories_nothing_that_failed_is_tried_again(data: Any) -> None:
    """Random ladders, causes that change, positions that stand still, snapshots that vanish."""
    names = [f"r{number}" for number in range(data.draw(st.integers(1, 5)))]
    rungs = {**RUNGS, **{name: data.draw(RANDOM_RUNG) for name in names}}
    preferred = st.lists(st.sampled_from(names), max_size=4).map(tuple)
    policy = Policy(
        rungs=rungs,
        ladder=(*names, "halt"),
        preferences={cause: data.draw(preferred) for cause in CAUSES},
        lookahead=data.draw(st.sampled_from([0.0, 1.0])),
        min_lr_factor=0.001,
    )
    earlier = [closed(decided(Policy(), NOW))] if data.draw(st.booleans()) else []
    plans: list[Plan] = []
    position = NOW.position
    snapshots: list[SnapshotRef] = list(REFS)
    for _ in range(60):
        only = data.draw(st.booleans())
        now = replace(
            NOW,
            diagnosis=blamed(data.draw(st.sampled_from(CAUSES)), data=data.draw(st.floats(0, 1))),
            only_gradients=only,
            must_act=data.draw(st.booleans()),
            position=position,
            snapshots=snapshots,
            earlier=earlier,
            incident=after(*plans) if plans else None,
            step=data.draw(st.integers(96, 180)),
        )
        plan = policy.decide(now)
        assert plan == policy.decide(now), "not a function of the situation"
        if plan is None:
            continue
        assert essence(plan) not in {essence(one) for one in plans}
        assert essence(plan) not in {essence(r.plan) for one in earlier for r in one.plans}
        assert Plan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan
        if plan.rung == "halt":
            return
        plans.append(plan)
        named = [preferred.count(plan.rung) for preferred in policy.preferences.values()]
        allowed = max(rungs[plan.rung].tries, *named)
        assert [one.rung for one in plans].count(plan.rung) <= allowed
        position = max(position, stop_of(plan)) + data.draw(st.sampled_from([0, 0, 8, 64]))
        if data.draw(st.booleans()) and len(snapshots) > 1:
            snapshots.pop(data.draw(st.integers(0, len(snapshots) - 1)))
    raise AssertionError("an incident without an end")


# ---- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ladder": ()}, "Policy.ladder is empty"),
        ({"ladder": ("rollback",)}, "Policy.ladder ends in 'rollback'; it must end in 'halt'"),
        ({"ladder": ("rolback", "halt")}, "Policy.ladder[0] is 'rolback'; did you mean 'rollback'"),
        ({"ladder": ("halt", "skip", "halt")}, "Policy.ladder[0] halts the run"),
        ({"ladder": ("skip", "skip", "halt")}, "Policy.ladder[1] is 'skip', which stands"),
        ({"ladder": ("skip", "watch", "halt")}, "Policy.ladder[1] is 'watch'; it can only come"),
        ({"preferences": {"unknown": ("halts",)}}, "preferences.unknown[0] is 'halts'; did you"),
        ({"preferences": {"unknown": ("skip", "watch")}}, "[1] is 'watch', which must stand alone"),
        ({"rungs": {**RUNGS, "x": rung()}}, "Policy.rungs.x.actions is empty"),
        ({"rungs": {**RUNGS, "x": rung("halt", "pause")}}, "rungs.x.actions orders 'halt' and"),
        ({"rungs": {**RUNGS, "x": rung("pause", "rollback")}}, "'pause' must come last"),
        ({"rungs": {**RUNGS, "x": rung("quarantine")}}, "'quarantine' without 'rollback'"),
        ({"rungs": {**RUNGS, "x": rung("rollback", "quarantine")}}, "must come before 'rollback'"),
        ({"rungs": {**RUNGS, "x": rung("pause", "pause")}}, "orders 'pause' twice"),
        ({"rungs": {**RUNGS, "x": rung("pause", tries=0)}}, "rungs.x.tries is 0"),
        ({"rungs": {**RUNGS, "x": rung("pause", cooldown_steps=-1)}}, "cooldown_steps is -1"),
        ({"rungs": {**RUNGS, "x": rung("pause", further_back=True)}}, "further_back needs"),
        ({"rungs": {**RUNGS, "watch": rung("pause")}}, "Policy.rungs.watch orders something"),
        ({"rungs": {}}, "Policy.ladder[0] is 'watch'"),
        ({"max_samples_set_aside": -1}, "Policy.max_samples_set_aside is -1"),
        ({"max_share_set_aside": 1.5}, "Policy.max_share_set_aside is 1.5"),
        ({"min_lr_factor": 0.0}, "Policy.min_lr_factor is 0.0"),
        ({"max_steps_retrained": -1}, "Policy.max_steps_retrained is -1"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**settings)
    assert says in str(caught.value)


def test_the_default_orders_what_every_loop_with_a_stream_can_do() -> None:
    everywhere = {"skip_update", "quarantine", "rollback", "cap_lr", "scale_lr", "halt"}
    assert Policy().actions == everywhere
    assert set(Policy().rungs_in_use) >= set(LADDER)
    assert set(PREFERENCES) <= set(members("causes"))
