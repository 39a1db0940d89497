"""Hand-made cases with a known answer, as the standard rules see them."""

import math

import numpy as np
import pytest

from foreshock.catalog import make, members
from foreshock.core.case import BatchFinding, Case
from foreshock.core.cause import Diagnosis, diagnose
from foreshock.detectors.spike import Spike
from tests.causes.simulated_run import SIGNALS, SimulatedRun

ODD = [BatchFinding(statement="repeated share of the samples is 0.9, before 0.01", strength=2.0)]
SEEDS = pytest.mark.parametrize("seed", range(5))


def bad_batches(seed: int = 0) -> SimulatedRun:
    """Loss and gradient jump first; the update follows by the optimizer's inertia."""
    run = SimulatedRun(seed=seed)
    for step in (60, 61, 62):
        run.at(step, loss=5.0, grad_norm=4.0, update_ratio=2.5e-3 + 1e-3 * (step - 60))
    return run


def damaged_moments(seed: int = 0) -> SimulatedRun:
    """The update jumps at an ordinary loss and gradient; the loss follows a step later."""
    run = SimulatedRun(seed=seed).at(60, update_ratio=0.044)
    return run.at(61, loss=7.0, grad_norm=6.0, update_ratio=0.03).at(
        62, loss=8.0, grad_norm=5.0, update_ratio=0.02
    )


def raised_rate(seed: int = 0) -> SimulatedRun:
    """The rate is ten times what it was from one step on, and so is the update; the loss later."""
    run = SimulatedRun(seed=seed).times(60, lr=10.0, update_ratio=10.0)
    return run.times(62, loss=1.5, grad_norm=6.0)


def broken_forward(seed: int = 0) -> SimulatedRun:
    run = SimulatedRun(seed=seed).times(0, loss_scale=1 / 65536.0)  # no scaler is in use
    return run.at(60, loss=math.nan, grad_norm=math.nan).skipped(60)


def broken_backward(seed: int = 0) -> SimulatedRun:
    run = SimulatedRun(seed=seed)
    for step in (60, 61, 62):
        run.at(step, grad_norm=math.inf, loss_scale=65536.0 / 2 ** (step - 59)).skipped(step)
    return run


def ranked(found: Diagnosis) -> list[tuple[str, float]]:
    return [(one.cause, round(one.probability, 3)) for one in found.candidates]


@SEEDS
def test_bad_batches(seed: int) -> None:
    found = bad_batches(seed).diagnosed(62, ODD)
    assert found.top.cause == "data_batch", ranked(found)
    assert found.top.probability > 0.5
    assert (found.onset_step, found.loss_moved_step) == (60, 60)
    assert found.data_suspicion > 0.8
    assert any("repeated share" in one.statement for one in found.top.evidence)
    assert bad_batches(seed).diagnosed(62).top.cause == "data_batch"


@SEEDS
def test_samples_that_look_as_before_speak_for_no_bad_batch(seed: int) -> None:
    found = bad_batches(seed).diagnosed(62, [])
    assert found.top.cause != "data_batch", ranked(found)


@SEEDS
def test_damaged_optimizer_state(seed: int) -> None:
    found = damaged_moments(seed).diagnosed(62)
    assert found.top.cause == "optimizer_state_corrupt", ranked(found)
    assert found.top.probability > 0.5
    assert found.top.probability > 4 * found.candidates[1].probability
    assert found.data_suspicion < 0.2
    assert (found.onset_step, found.loss_moved_step) == (60, 61)
    assert found.first_mover == "update_ratio/global"


@SEEDS
def test_a_ramp_of_the_rate_takes_nothing_from_a_damaged_optimizer(seed: int) -> None:
    run = damaged_moments(seed)
    run.rows[:, SIGNALS.index("lr")] = 1e-5 * np.arange(len(run.rows))
    found = run.diagnosed(62)
    assert found.top.cause == "optimizer_state_corrupt", ranked(found)
    assert found.top.probability > 0.45
    assert found.top.probability > 4 * found.candidates[1].probability


@SEEDS
def test_a_raised_rate(seed: int) -> None:
    found = raised_rate(seed).diagnosed(63)
    assert found.top.cause == "lr_too_high", ranked(found)
    assert found.data_suspicion < 0.3


@SEEDS
@pytest.mark.parametrize("ramp", [1e-5, 1e-3])
def test_a_warm_up_alone_is_not_taken_for_a_raised_rate(seed: int, ramp: float) -> None:
    run = bad_batches(seed)
    run.rows[:, SIGNALS.index("lr")] = ramp * np.arange(len(run.rows))
    found = run.diagnosed(62, ODD)
    assert found.top.cause == "data_batch"
    shares = dict(ranked(found))
    assert shares["lr_too_high"] <= shares["unknown"]


@SEEDS
def test_a_nan_in_the_loss(seed: int) -> None:
    found = broken_forward(seed).diagnosed(60)
    assert found.top.cause == "numeric_overflow", ranked(found)
    assert any("born in the forward" in one.statement for one in found.top.evidence)
    assert len(found.path) == 1


@SEEDS
def test_an_inf_in_the_gradient_only(seed: int) -> None:
    """The scaler's own doing: a scale that falls says that fp16 is in use."""
    found = broken_backward(seed).diagnosed(62)
    assert found.top.cause == "fp16_gradient_overflow", ranked(found)
    assert found.top.probability > 0.8
    said = " ".join(one.statement for one in found.top.evidence)
    assert "born in the backward" in said
    run = broken_backward(seed)
    run.rows[:, SIGNALS.index("loss_scale")] = 1.0
    run.facts = {"precision": "fp32"}
    found = run.diagnosed(62)
    assert found.top.cause == "numeric_overflow", ranked(found)


@SEEDS
@pytest.mark.parametrize("back", [1, 5])
def test_one_step_out_of_range(seed: int, back: int) -> None:
    run = SimulatedRun(seed=seed).at(60, loss=4.0, grad_norm=3.0)
    found = run.diagnosed(60 + back)
    assert found.top.cause == "benign", ranked(found)
    assert run.diagnosed(60).top.cause != "benign"


def test_noise_is_never_named_with_confidence() -> None:
    """Alarms on noise alone: a rule as tight as 2 deviations makes plenty of them."""
    causes = [make("causes", name) for name in members("causes")]
    looks = [make("symptoms", name) for name in members("symptoms")]
    wrong, total = 0, 0
    for seed in range(60):
        monitor = SimulatedRun(seed=seed).monitor(70)
        tight = Spike(z=2.0, onset_z=2.0, watches=("loss", "grad_norm", "update_ratio"))
        names = ["loss/global", "grad_norm/global", "update_ratio/global"]
        values = np.stack([monitor.timeline.values(name) for name in names], axis=1)
        _, alarms = tight.update(tight.init(names), monitor.timeline.steps.copy(), values)
        for last in {alarm.step for alarm in alarms if alarm.step > 60}:
            recent = [alarm for alarm in alarms if last - 5 <= alarm.step <= last]
            case = Case(timeline=monitor.timeline, alarms=recent, starts=(0,))
            top = diagnose(case, causes, looks).top
            total += 1
            wrong += top.cause not in ("benign", "unknown") and top.probability > 0.5
    assert total > 50
    assert wrong == 0
