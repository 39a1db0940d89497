"""What only looks like a reading is put right before anything is judged."""

import math

import numpy as np
import pytest

from foreshock.core.log import EventKind
from foreshock.inspection.finding import RunClass
from foreshock.inspection.trace import Ready, make_ready
from tests.inspection.runs import falling, inspected, level, log_of

QUIET = {RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS}


def ready(signals: dict, **more) -> Ready:
    return make_ready(log_of(signals, **more).runs[0])


def norm_of(prepared: Ready) -> np.ndarray:
    assert prepared.grad_norm is not None
    return prepared.grad_norm.values


def test_a_norm_that_never_changes_is_not_measured() -> None:
    prepared = ready({"loss": falling(30), "grad_norm": [1.0] * 30})
    assert prepared.grad_norm is None
    assert prepared.warnings == ("the gradient norm is 1 in every reading: it is not measured",)
    assert "grad_norm" in prepared.raw  # rules see the log as it stands


def test_a_norm_of_exactly_zero_is_a_reading_that_says_something() -> None:
    assert norm_of(ready({"loss": [0.0] * 30, "grad_norm": [0.0] * 30})).tolist() == [0.0] * 30


def test_a_norm_that_repeats_while_steps_are_skipped_is_stale() -> None:
    norm = level(40, 0.5)
    norm[20:25] = norm[19]
    skips = dict.fromkeys(range(20, 25), (EventKind.OVERFLOW, "grad_norm"))
    prepared = ready({"loss": falling(40), "grad_norm": norm}, events=skips)
    assert prepared.grad_norm is not None
    assert prepared.grad_norm.steps.tolist() == [*range(1, 21), *range(26, 41)]
    assert any("5 gradient norms" in said for said in prepared.warnings)
    kept = ready({"loss": falling(40), "grad_norm": norm})  # nothing was skipped
    assert norm_of(kept).tolist() == norm.tolist()
    assert kept.warnings == ()


@pytest.mark.parametrize("printed_scaled", [True, False])
def test_a_norm_that_is_printed_times_the_loss_scale_is_divided_by_it(
    printed_scaled: bool,
) -> None:
    scale = np.array([65536.0 / 2 ** (row // 30) for row in range(120)])
    true = level(120, 0.5, noise=0.1)
    printed = true * scale if printed_scaled else true
    prepared = ready({"loss": falling(120), "grad_norm": printed, "loss_scale": scale})
    assert norm_of(prepared) == pytest.approx(true)
    assert bool(prepared.warnings) is printed_scaled


def test_scaled_norms_are_no_explosion_and_nan_among_them_stays() -> None:
    scale = np.array([2.0 ** (8 + (row // 30) % 3) for row in range(150)])
    norm = level(150, 0.5, noise=0.1) * scale
    norm[[77, 99]] = math.nan, math.inf
    signals = {"loss": falling(150), "grad_norm": norm, "loss_scale": scale}
    assert [repr(value) for value in norm_of(ready(signals))[[77, 99]].tolist()] == ["nan", "inf"]
    assert inspected(signals).run_class in QUIET


@pytest.mark.parametrize("has_norm", [True, False])
def test_a_loss_of_exactly_zero_is_a_nan_that_was_filtered(has_norm: bool) -> None:
    loss, norm = level(40, 1.2), level(40, 0.5)
    loss[30:], norm[30:] = 0.0, math.nan
    prepared = ready({"loss": loss, **({"grad_norm": norm} if has_norm else {})})
    assert prepared.loss is not None
    assert np.isnan(prepared.loss.values).tolist() == [False] * 30 + [True] * 10
    assert prepared.raw["loss"].values[30:].tolist() == [0.0] * 10


def test_a_loss_that_was_learnt_down_to_zero_is_no_nan() -> None:
    loss = np.concatenate((0.5 * 0.7 ** np.arange(30), [0.0] * 5))
    prepared = ready({"loss": loss})
    assert prepared.loss is not None
    assert prepared.loss.finite.all()
    beside = ready({"loss": [*level(30, 1.2), *[0.0] * 5], "grad_norm": level(35, 0.5)})
    assert beside.loss is not None
    assert beside.loss.finite.all()  # the norm is measured, and finite


@pytest.mark.parametrize("label", ["rewards/mean", "kl", "completions/mean_length"])
def test_rewards_tell_reinforcement_learning(label: str) -> None:
    is_rl = ready({"loss": [0.0, 1e-4, 3e-4], label: [0.1, 0.2, 0.3]}).is_rl
    assert is_rl is (label != "kl")  # distillation has a divergence, too
