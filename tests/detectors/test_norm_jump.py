"""The rule on weight norms: what no update does, and nothing that updates do."""

import math

import numpy as np
import pytest

from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.norm_jump import NormJump

LR, STEPS, READ_EVERY = 3e-3, 1500, 10


def alarms(values, steps=None, **settings):
    rule = NormJump(**settings)
    block = np.asarray(values, np.float64)[:, None]
    steps = np.arange(len(block)) if steps is None else np.asarray(steps)
    return rule.update(rule.init(["param_norm/embed"]), steps, block)[1]


def brief(found):
    return [(one.kind.value, one.step, one.onset_step) for one in found]


CALM = [30.0 + 0.01 * n for n in range(20)]


def test_by_hand() -> None:
    found = alarms([*CALM, 6e36, 6e36, 30.2, 30.21], steps=range(0, 240, 10))
    assert brief(found) == [("discontinuity", 200, 191), ("discontinuity", 210, 191)]
    assert (found[0].baseline, found[0].threshold) == (CALM[-1], 2 * CALM[-1])


def test_a_fall_is_as_odd_as_a_rise() -> None:
    (found,) = alarms([*CALM, 15.0])
    assert found.threshold == CALM[-1] / 2
    assert alarms([*CALM, 15.2]) == alarms([*CALM, 60.0]) == []
    assert len(alarms([*CALM, 0.0])) == 1


def test_what_grows_by_degrees_is_let_grow() -> None:
    for power in (1, 2, 3):
        assert alarms([1e-3 * n**power for n in range(200)]) == []
    assert alarms([1e-3 * 1.9**n for n in range(60)]) == []
    assert alarms([1e-3 * 5.0**n for n in range(60)]) == []  # its changes grow likewise


def test_it_is_a_jump_against_the_usual_changes() -> None:
    wobbly = [10.0 + 1.5 * (n % 2) for n in range(30)]
    assert alarms([*wobbly, 26.0]) == []
    assert len(alarms([*wobbly, 26.6])) == 1


def test_a_level_that_stays_is_accepted_and_watched_on() -> None:
    found = alarms([*CALM, *[90.0] * 20, 190.0], rebaseline_after_steps=5)
    kinds = [one.kind for one in found]
    assert kinds == [AlarmKind.DISCONTINUITY] * 4 + [AlarmKind.SHIFT, AlarmKind.DISCONTINUITY]
    assert (found[-1].baseline, found[-1].threshold) == (90.0, 180.0)


def test_no_alarm_before_it_knows_the_usual_change_or_from_zero() -> None:
    assert alarms([1.0] * 9 + [1e9]) == []
    assert len(alarms([1.0] * 10 + [1e9])) == 1
    assert alarms([0.0] * 50 + [1e-3, 2e-3, 4e-3]) == []


def test_the_onset_is_after_the_last_reading_in_range_however_many_are_missing() -> None:
    found = alarms([*CALM, math.nan, math.inf, 1e20], steps=range(0, 230, 10))
    assert brief(found) == [("discontinuity", 220, 191)]


def trained(kind: str, seed: int, every: int = READ_EVERY) -> list[float]:
    """Norms of weights under Adam with random gradients: heavy-tailed ones, and schedules."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(400) if kind.startswith("zero") else 0.02 * rng.standard_normal(400)
    first, second = np.zeros(400), np.zeros(400)
    slope = rng.standard_normal(400)
    norms = []
    for step in range(1, STEPS + 1):
        match kind:
            case "warm-up" | "zero, warm-up":
                rate = LR * min(1.0, step / 500)
            case "restarts":
                rate = LR * (0.01 + 0.5 * (1 + math.cos(math.pi * (step % 300) / 300)))
            case "raised":
                rate = LR * (3.0 if step > 700 else 0.3)
            case _:
                rate = LR
        gradient = rng.standard_t(1.5, 400) + (slope if kind != "noise" else 0.0)
        if step % 97 == 0:
            gradient *= 1e4  # a batch like no other
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        size = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        weights = weights * (1 - rate * 0.1) - rate * size
        if step % every == 0:
            norms.append(float(np.linalg.norm(weights)))
    return norms


KINDS = ["noise", "slope", "zero", "warm-up", "zero, warm-up", "restarts", "raised"]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_training_raises_no_alarm_whatever_its_data_and_schedule(
    kind: str, every: int
) -> None:
    for seed in range(4):
        assert alarms(trained(kind, seed, every)) == [], seed


def test_a_rate_far_too_high_may_raise_one_and_no_more_than_that_is_claimed() -> None:
    """At 30 % of the weights a step, updates do double a norm: the cause tells them apart."""
    values = [*CALM, *(30.0 * 1.3 ** (10 * n) for n in range(1, 3))]
    assert [one.kind for one in alarms(values)] == [AlarmKind.DISCONTINUITY] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_exponent_bit_is_seen_at_the_next_reading(kind: str) -> None:
    norms = trained(kind, 9)
    rng = np.random.default_rng(3)
    for at in rng.integers(20, len(norms), 20).tolist():
        weight = np.float32(rng.normal() * norms[at] / 20)
        flipped = (weight.view(np.uint32) ^ np.uint32(1 << 30)).view(np.float32)
        if not np.isfinite(flipped):
            continue
        struck = norms.copy()
        struck[at] = math.hypot(norms[at], float(flipped))
        assert [one.step for one in alarms(struck)] == [at]


@pytest.mark.parametrize(
    "settings",
    [{"ratio": 1.0}, {"ratio": math.nan}, {"ratio": math.inf}, {"times": 0.0},
     {"window_steps": 0}, {"warmup_steps": 1}, {"rebaseline_after_steps": 0}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        NormJump(**settings)
