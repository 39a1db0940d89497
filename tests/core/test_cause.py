"""Ranking causes, and the way through the decision tree."""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.case import BatchFinding, Case
from foreshock.core.cause import Cause, Diagnosis, Evidence, decision_path, diagnose
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.timeline import Timeline

SERIES = ["loss/global", "grad_norm/global", "grad_norm/blocks.0.mlp", "lr/global"]


@dataclass(frozen=True, kw_only=True)
class Fixed(Cause):
    """A cause whose evidence is given."""

    name: ClassVar[str] = "fixed"
    predicts: ClassVar[str] = "p"
    contradicts: ClassVar[str] = "c"
    settled_by: ClassVar[str] = "s"
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = 0.0
    weights: tuple[float, ...] = ()

    def weigh(self, case: Case) -> list[Evidence]:
        readings = tuple(case.timeline.readings("loss/global", case.onset_step, None)[:1])
        return [Evidence(statement=f"w{w}", weight=w, readings=readings) for w in self.weights]


@dataclass(frozen=True, kw_only=True)
class Other(Fixed):
    name: ClassVar[str] = "other"
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0


def alarm(step: int, series: str = "loss/global", *, onset: int | None = None, value: float = 9.0):
    kind = AlarmKind.SPIKE if math.isfinite(value) else AlarmKind.NONFINITE
    return Alarm(
        kind=kind, detector="d", series=series, step=step,
        onset_step=step if onset is None else onset, value=value,
    )  # fmt: skip


def case(*alarms: Alarm, last: int = 30, row=(1.0, 1.0, 1.0, 1.0), **more) -> Case:
    line = Timeline(SERIES)
    for step in range(last + 1):
        line.append(1, step, True, row)
    return Case(timeline=line, alarms=alarms, **more)


WEIGHTS = st.lists(st.floats(-50, 50), max_size=4).map(tuple)


@given(WEIGHTS, WEIGHTS)
def test_probabilities_are_a_softmax_of_prior_and_weights(one, two) -> None:
    found = diagnose(case(alarm(30)), [Fixed(weights=one), Other(weights=two)])
    by_name = {candidate.cause: candidate.probability for candidate in found.candidates}
    gap = sum(one) - (sum(two) - 1.0)
    assert by_name["fixed"] == pytest.approx(1 / (1 + math.exp(-gap)))
    assert sum(by_name.values()) == pytest.approx(1)
    assert found.top.probability == max(by_name.values())
    assert found.data_suspicion == pytest.approx(by_name["fixed"])


def test_extreme_weights_neither_overflow_nor_vanish() -> None:
    found = diagnose(case(alarm(30)), [Fixed(weights=(1e6,)), Other(weights=(-1e6,))])
    assert [candidate.probability for candidate in found.candidates] == [1.0, 0.0]


def test_equals_are_ranked_by_name() -> None:
    causes = [Other(weights=(1.0,)), Fixed()]
    for order in (causes, causes[::-1]):
        ranked = diagnose(case(alarm(30)), order).candidates
        assert [candidate.cause for candidate in ranked] == ["fixed", "other"]


def test_onset_alarm_and_loss_are_told_apart() -> None:
    found = diagnose(
        case(alarm(25, "grad_norm/global", onset=22), alarm(27, onset=26), alarm(28, onset=26)),
        [Fixed()],
    )
    assert (found.onset_step, found.alarm_step, found.loss_moved_step) == (22, 25, 26)
    assert found.first_mover == "grad_norm/global"


def test_the_loss_did_not_move_where_only_others_did() -> None:
    assert diagnose(case(alarm(25, "grad_norm/global")), [Fixed()]).loss_moved_step is None


def test_among_equals_the_whole_run_moved_first_and_the_loss_last() -> None:
    alarms = [alarm(25), alarm(25, "grad_norm/blocks.0.mlp"), alarm(25, "grad_norm/global")]
    assert diagnose(case(*alarms), [Fixed()]).first_mover == "grad_norm/global"
    assert diagnose(case(*alarms[:2]), [Fixed()]).first_mover == "loss/global"


@pytest.mark.parametrize("value", [9.0, math.nan, math.inf])
def test_a_diagnosis_survives_strict_json(value: float) -> None:
    row = (value, 1.0, 1.0, 1.0)
    found = diagnose(case(alarm(28, value=value), row=row), [Fixed(weights=(1.0, -0.25)), Other()])
    assert found.top.evidence[0].readings
    assert found.path[0].readings
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    back = Diagnosis.from_json(told)
    assert back.to_json() == found.to_json()
    assert repr(back.path) == repr(found.path)
    assert repr(back.top.evidence) == repr(found.top.evidence)
    assert back.data_suspicion == pytest.approx(found.data_suspicion, abs=1e-3)


def test_the_path_ends_at_once_where_a_number_broke() -> None:
    for series in ("loss/global", "grad_norm/global", "param_norm/global"):
        (branch,) = decision_path(case(alarm(28, series, value=math.nan)))
        assert branch.answer.startswith(f"yes, {series} at step 28")


def test_the_path_asks_whether_it_fell_back_by_itself() -> None:
    healed, lasting = decision_path(case(alarm(28)))[1], decision_path(case(alarm(30)))[1]
    assert healed.answer.startswith("yes, since step 29")
    assert lasting.answer.startswith("not by step 30")
    assert lasting.readings == (case(alarm(30)).timeline.readings("loss/global", 30, 30)[0],)


def test_nothing_to_explain_and_nothing_to_explain_it_with() -> None:
    with pytest.raises(ValueError, match="without an alarm"):
        diagnose(case(), [Fixed()])
    with pytest.raises(ValueError, match="no causes"):
        diagnose(case(alarm(30)), [])


# ---- the case: how far a series stands from its healthy past -------------------------


def of(values: list[float], *, onset: int, committed: list[bool] | None = None) -> Case:
    line = Timeline(["loss/global"])
    for step, value in enumerate(values):
        line.append(1, step, committed is None or committed[step], [value])
    return Case(timeline=line, alarms=[alarm(onset)])


def test_a_jump_by_hand() -> None:
    jump = of([1.0, 2.0, 3.0, 2.0, 1.0, 3.0, 10.0], onset=6).jump("loss/global", 6)
    assert jump is not None
    assert (jump.value, jump.baseline, jump.ratio) == (10.0, 2.0, 5.0)
    assert jump.z == pytest.approx(8 / 1.4826)
    assert [reading.step for reading in jump.readings] == [6]


@pytest.mark.parametrize(("value", "ratio"), [(0.0, 1.0), (2.0, math.inf), (-2.0, -math.inf)])
def test_a_past_of_zeros_is_no_jump_by_itself(value: float, ratio: float) -> None:
    jump = of([0.0] * 6 + [value], onset=6).jump("loss/global", 6)
    assert jump is not None
    assert jump.ratio == ratio


def test_skipped_and_broken_steps_are_no_healthy_past() -> None:
    values = [1.0, 50.0, 1.0, math.nan, 1.0, 50.0, 1.0, 50.0, 1.0, 4.0]
    skipped = [value != 50.0 for value in values]
    jump = of(values, onset=9, committed=skipped).jump("loss/global", 9)
    assert jump is not None
    assert (jump.baseline, jump.ratio) == (1.0, 4.0)
    assert of(values[1:], onset=8, committed=skipped[1:]).jump("loss/global", 8) is None


def test_a_jump_needs_a_past_and_a_present() -> None:
    assert of([1.0] * 4 + [9.0], onset=4).jump("loss/global", 4) is None
    assert of([1.0] * 9, onset=6).jump("loss/global", 20) is None
    assert of([1.0] * 9, onset=6).jump("lr/global", 6) is None


def test_the_first_step_beyond_by_hand() -> None:
    found = of([1.0, 2.0, 3.0, 2.0, 1.0, 3.0, 3.0, 5.0, math.nan, 9.0], onset=6)
    step = {name: found.first_beyond("loss/global", **limits) for name, limits in {
        "z": {"z": 2.0}, "ratio": {"ratio": 4.0}, "both": {"z": 2.0, "ratio": 3.0},
        "never": {"ratio": 5.0}, "any": {},
    }.items()}  # fmt: skip
    told = {name: jump.step if jump else None for name, jump in step.items()}
    assert told == {"z": 7, "ratio": 9, "both": 9, "never": None, "any": 6}
    assert step["z"] == found.jump("loss/global", 7)
    assert found.first_beyond("lr/global") is None


def test_the_peak_is_the_largest_finite_value_since_the_onset() -> None:
    values = [99.0, *[1.0] * 6, 3.0, math.nan, 7.0, 2.0]
    peak = of(values, onset=7).peak("loss/global")
    assert peak is not None
    assert (peak.step, peak.value) == (9, 7.0)
    assert of([1.0] * 6 + [math.nan], onset=6).peak("loss/global") is None


@pytest.mark.parametrize(
    ("values", "at_once"),
    [
        ([1.0] * 9 + [3.0], True),
        ([1.0] * 5 + [3.0] * 5, True),
        ([0.1 * i for i in range(10)], False),
        ([1.0] * 10, False),
        ([3.0] * 5 + [1.0] * 5, False),
        ([1.0], False),
    ],
)
def test_a_rise_at_once_is_told_from_a_ramp(values: list[float], at_once: bool) -> None:
    assert of(values, onset=len(values) - 1).rose_at_once("loss/global") is at_once


def test_findings_and_tried_are_optional() -> None:
    bare = case(alarm(30))
    assert (bare.batch_findings, bare.tried) == (None, ())
    found = case(alarm(30), batch_findings=[BatchFinding(statement="x", strength=1.0)])
    assert found.batch_findings is not None
