"""What the first readings of a run can tell, and what the last one."""

import numpy as np
import pytest

from foreshock.core.log_builder import LogBuilder
from foreshock.inspection.finding import EpisodeKind, RunClass
from foreshock.inspection.inspect import inspect_log
from tests.inspection.runs import falling, inspected, level

QUIET = {RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS}


def test_a_steep_fall_is_no_noise_that_hides_a_rise() -> None:
    found = inspected({"loss": [14.2, 11.9, 4.4, 2.6, 1.5, 5.1, 6.8, 9.7]}, interval=50)
    assert found.run_class is RunClass.DIVERGENCE
    assert found.worst.episodes[0].onset_step == 251


def test_a_new_model_that_overshoots_at_first_has_lost_nothing() -> None:
    loss = np.concatenate(([6.9, 12.4, 10.8, 7.9], falling(40, seed=4) * 0.6))
    assert inspected({"loss": loss}, interval=20).run_class in QUIET
    tuned = np.concatenate(([1.6, 9.4, 6.8, 2.9], level(40, 1.5, noise=0.02, seed=4)))
    assert inspected({"loss": tuned}, interval=20).run_class is RunClass.RECOVERING_SPIKE


def test_the_first_average_after_a_resumption_may_be_too_low() -> None:
    loss = np.concatenate(([0.33], np.linspace(3.3, 2.9, 24)))
    assert inspected({"loss": loss}, first=3200, interval=200).run_class in QUIET
    rising = np.concatenate(([2.33], np.linspace(7.3, 7.9, 24)))
    found = inspected({"loss": rising}, first=3200, interval=200)
    assert found.run_class is RunClass.DIVERGENCE
    assert inspected({"loss": loss}, first=1).run_class.is_trouble


@pytest.mark.parametrize("seed", range(4))
def test_standing_still_at_the_end_of_what_was_learned_is_no_plateau(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=300)
    learned = 2.05 + 4.9 / (1 + np.arange(300) / 3) + 0.06 * noise
    learned[:3] = (6.9, 16.8, 9.0)
    assert inspected({"loss": learned}, interval=50).run_class is not RunClass.PLATEAU
    stuck = 4.4 + 2.5 / (1 + np.arange(300)) + 0.06 * noise
    stuck[:3] = (6.9, 16.8, 9.0)
    assert inspected({"loss": stuck}).run_class is RunClass.PLATEAU


def test_a_last_norm_that_is_nan_passes_only_if_the_loss_stayed() -> None:
    loss, norm = level(12, 1.8), level(12, 3.0)
    norm[-1] = np.nan
    assert inspected({"loss": loss, "grad_norm": norm}).run_class is RunClass.BENIGN_OUTLIERS
    loss[-1] = 650.0
    found = inspected({"loss": loss, "grad_norm": norm})
    assert found.run_class is RunClass.NAN
    assert found.worst.nan_from_step == 12


def test_a_loss_of_rewards_that_stays_a_little_higher_is_no_shift() -> None:
    rng = np.random.default_rng(0)
    loss, norm = -0.06 * (rng.random(80) < 0.5) + 0.002 * rng.random(80), level(80, 0.02)
    loss[40:], norm[40:42] = 0.003 * rng.random(40), 0.6
    rewards = np.linspace(0.8, 0.6, 80)
    assert inspected({"loss": loss, "grad_norm": norm, "reward": rewards}).run_class in QUIET
    loss[60:] = 40.0
    found = inspected({"loss": loss, "grad_norm": norm, "reward": rewards})
    assert found.run_class is RunClass.DIVERGENCE


@pytest.mark.parametrize("label", ["grpo_loss", "actor/pg_loss", "policy_loss"])
def test_the_label_of_a_loss_says_that_it_is_one_of_rewards(label: str) -> None:
    loss = [-0.0, -0.0, 0.16, -0.0, 0.27, 0.24, 0.31, 0.29, 0.26, 0.27]
    assert inspected({label: loss}).run_class in QUIET
    assert inspected({"loss": loss}).run_class.is_trouble


def test_a_run_too_short_to_judge_does_not_speak_for_one_that_was_judged() -> None:
    log = LogBuilder()
    for run in (2, 300, 3):
        log.new_run()
        for row, value in enumerate(falling(run)):
            log.row(row + 1, [("loss", float(value))])
    found = inspect_log(log.finish(path="x.log", format="test", title="a test"))
    assert [one.run_class for one in found.findings][::2] == [RunClass.NOT_JUDGEABLE] * 2
    assert (found.run_class, found.worst.run.number) == (RunClass.HEALTHY, 2)


def test_nothing_is_said_of_a_log_without_a_run_that_can_be_judged() -> None:
    found = inspected({"loss": [2.0, 1.9]})
    assert found.run_class is RunClass.NOT_JUDGEABLE
    assert not [one for one in found.worst.episodes if one.kind is not EpisodeKind.BENIGN_OUTLIER]


def test_a_low_loss_scale_that_grows_again_has_not_collapsed() -> None:
    scale = np.repeat([4.0, 2.0, 4.0, 2.0, 1.0, 2.0, 1.0, 0.5, 1.0, 2.0, 0.5, 1.0], 20)
    loss = falling(len(scale))
    assert not inspected({"loss": loss, "loss_scale": scale}, interval=200).run_class.is_trouble
    found = inspected({"loss": loss[:160], "loss_scale": scale[:160]}, interval=200)
    assert found.run_class is RunClass.LOSS_SCALE_COLLAPSE


def test_the_search_for_a_scale_is_over_by_the_first_of_rare_records() -> None:
    log = LogBuilder()
    for scale in (64.0, 32.0, 16.0, 8.0, 4.0, 2.0):
        log.row(None, [("loss_scale", scale)])
    for number, loss in enumerate(falling(40), 1):
        log.row(200 * number, [("loss", float(loss)), ("loss_scale", 2.0)])
    found = inspect_log(log.finish(path="x.log", format="test", title="a test"))
    assert found.run_class in QUIET


def test_a_loss_of_rewards_that_is_zero_at_the_end_is_no_hidden_nan() -> None:
    loss = [-0.28, -0.21, 0.14, -0.08, 0.0, 0.0, 0.0, 0.0]
    assert inspected({"grpo_loss": loss}).run_class in QUIET
    found = inspected({"loss": [1.28, 1.21, 1.14, 1.08, 0.0, 0.0, 0.0, 0.0]})
    assert found.run_class is RunClass.NAN
