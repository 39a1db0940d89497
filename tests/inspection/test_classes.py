"""Each class from a run made for it, and what must not be taken for it."""

import math

import numpy as np
import pytest

from foreshock.core.log import EventKind
from foreshock.inspection.finding import EpisodeKind, RunClass
from tests.inspection.runs import falling, inspected, level

QUIET = {RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
@pytest.mark.parametrize("num_readings", [15, 80, 1000])
def test_a_falling_loss_is_healthy(seed: int, noise: float, num_readings: int) -> None:
    found = inspected({
        "loss": falling(num_readings, noise=noise, seed=seed),
        "grad_norm": level(num_readings, 0.4, noise=0.2, seed=seed + 9),
    })  # fmt: skip
    assert found.run_class in QUIET
    assert found.exit_code == 0
    assert not [one for one in found.worst.episodes if one.matters]


def test_one_reading_far_out_is_a_benign_outlier_and_counted() -> None:
    loss = level(500, 2.5)
    loss[[120, 300, 301, 420]] += 1.5
    found = inspected({"loss": loss}, first=50_000)
    assert found.run_class is RunClass.BENIGN_OUTLIERS
    assert found.worst.num_outliers == 3  # 300 and 301 are one
    assert found.exit_code == 0


def test_a_wide_spike_that_comes_back_matters() -> None:
    loss, norm = level(500, 2.5), level(500, 0.3, seed=1)
    loss[300:330] += 1.5 * np.exp(-np.arange(30) / 8)
    norm[298:330] *= 20
    found = inspected({"loss": loss, "grad_norm": norm})
    assert found.run_class is RunClass.RECOVERING_SPIKE
    (episode,) = [one for one in found.worst.episodes if one.matters]
    assert episode.first_mover == "grad_norm"
    assert episode.lead_to_loss_move_steps == 2
    assert (episode.onset_step, episode.peak_step) == (299, 301)
    assert episode.end_step is not None
    assert 320 <= episode.end_step <= 335
    assert episode.steps_lost == episode.end_step - 301
    assert abs(episode.after_effect) < 0.05
    assert abs(episode.after_effect_sds) < 3


def test_the_after_effect_is_what_was_lost_for_good() -> None:
    loss = level(500, 2.5, noise=0.002)
    loss[300:] += 0.012
    loss[300:310] += 1.5
    found = inspected({"loss": loss}, first=50_000)
    (episode,) = [one for one in found.worst.episodes if one.matters]
    assert episode.after_effect == pytest.approx(0.012, abs=0.004)


@pytest.mark.parametrize("step", [0.6, 3.0])
def test_a_loss_that_does_not_come_back_has_diverged(step: float) -> None:
    loss, norm = level(400, 2.5), level(400, 0.3, seed=1)
    loss[250:] += step
    norm[248:] *= 30
    found = inspected({"loss": loss, "grad_norm": norm})
    assert found.run_class is RunClass.DIVERGENCE
    episode = next(one for one in found.worst.episodes if one.kind is EpisodeKind.DIVERGENCE)
    assert episode.end_step is None
    assert episode.steps_lost is None
    assert episode.onset_step in (249, 250, 251)


def test_a_slow_climb_without_any_spike_has_diverged_too() -> None:
    loss = level(1000, 2.0, noise=0.02)
    loss[400:] *= 1 + np.arange(600) / 900
    found = inspected({"loss": loss})
    assert found.run_class is RunClass.DIVERGENCE
    assert 400 <= found.worst.episodes[0].onset_step <= 650


@pytest.mark.parametrize("lasting", [True, False])
def test_nan_is_nan_from_its_first_step(lasting: bool) -> None:
    loss = falling(200)
    loss[120 : None if lasting else 123] = math.nan
    found = inspected({"loss": loss})
    assert found.run_class is RunClass.NAN
    assert found.worst.nan_from_step == 121


def test_a_zero_loss_beside_a_nan_norm_is_a_filtered_nan() -> None:
    loss, norm = level(60, 1.2), level(60, 0.5)
    loss[40:], norm[40:] = 0.0, math.nan
    found = inspected({"loss": loss, "grad_norm": norm})
    assert found.run_class is RunClass.NAN
    assert found.worst.nan_from_step == 41
    assert any("0.0" in warning for warning in found.worst.warnings)


def test_a_norm_that_stays_nan_is_trouble_and_one_that_passes_is_not() -> None:
    norm = level(60, 0.5)
    norm[[0, 20]] = math.nan
    assert inspected({"loss": falling(60), "grad_norm": norm}).run_class in QUIET
    norm[50:] = math.nan
    found = inspected({"loss": falling(60), "grad_norm": norm})
    assert found.run_class is RunClass.NAN
    assert found.worst.nan_from_step == 51


def test_a_word_of_the_program_counts_as_nan() -> None:
    events = {30: (EventKind.NONFINITE, "loss")}
    found = inspected({"loss": falling(30), "lr": level(30, 1e-3)}, events=events)
    assert found.run_class in QUIET  # nothing was said yet: row 30 does not exist
    found = inspected({"loss": falling(30)}, events={29: (EventKind.NONFINITE, "loss")})
    assert found.run_class is RunClass.NAN
    assert found.worst.nan_from_step == 29


def test_a_scale_that_only_falls_has_collapsed_and_the_usual_cycle_has_not() -> None:
    loss = falling(400)
    cycle = np.array([65536.0 * 2 ** (1 - (row // 40) % 2) for row in range(400)])
    assert inspected({"loss": loss, "loss_scale": cycle}).run_class in QUIET
    collapse = cycle.copy()
    collapse[300:] = 65536.0 / 2.0 ** np.minimum(np.arange(100), 12)
    found = inspected({"loss": loss, "loss_scale": collapse})
    assert found.run_class is RunClass.LOSS_SCALE_COLLAPSE
    search = np.full(400, 64.0)
    search[:11] = [65536 / 2**k for k in range(11)]
    assert inspected({"loss": loss, "loss_scale": search}).run_class in QUIET
    search[:40] = [65536 / 2**k for k in range(40)]
    search[40:] = search[39]
    assert inspected({"loss": loss, "loss_scale": search}).run_class is (
        RunClass.LOSS_SCALE_COLLAPSE
    )


def test_a_norm_that_explodes_while_the_loss_is_flat_is_told_from_an_outlier() -> None:
    loss, norm = level(200, 2.0), level(200, 0.4)
    norm[120] *= 300
    assert inspected({"loss": loss, "grad_norm": norm}).run_class is RunClass.BENIGN_OUTLIERS
    norm[121:124] *= [500, 2000, 50]
    found = inspected({"loss": loss, "grad_norm": norm})
    assert found.run_class is RunClass.GRAD_NORM_EXPLOSION
    assert found.worst.episodes[0].onset_step == 121


def test_a_norm_that_is_large_all_along_has_not_exploded() -> None:
    norm = level(300, 4e5, noise=0.4)
    assert inspected({"loss": falling(300), "grad_norm": norm}).run_class in QUIET


def test_a_norm_that_grows_slowly_is_healthy() -> None:
    norm = level(2000, 4.0, noise=0.1) * np.exp(np.arange(2000) / 1100)
    assert inspected({"loss": falling(2000), "grad_norm": norm}).run_class in QUIET


@pytest.mark.parametrize(
    ("loss", "norm"),
    [
        (np.zeros(30), np.zeros(30)),
        (np.full(30, 0.6931), level(30, 0.1)),
        (level(200, 4.8, noise=0.002), level(200, 0.1)),
        (np.array([12.2, 11.9, 1e-6, 0.0, 0.0]), np.array([230.0, 190.0, 1e-7, 0.0, 0.0])),
    ],
)
def test_a_run_that_does_not_learn_stands_still(loss: np.ndarray, norm: np.ndarray) -> None:
    found = inspected({"loss": loss, "grad_norm": norm})
    assert found.run_class is RunClass.PLATEAU


def test_an_excerpt_of_a_long_run_may_stand_still() -> None:
    assert inspected({"loss": level(200, 2.1, noise=0.002)}, first=50_000).run_class in QUIET


def test_a_converged_run_may_stand_still() -> None:
    loss = np.concatenate((falling(200), level(800, 2.3)))
    assert inspected({"loss": loss}).run_class in QUIET


def test_down_steps_at_the_epochs_are_healthy() -> None:
    loss = np.concatenate([level(400, 1.2 * 0.6**epoch, noise=0.05) for epoch in range(4)])
    assert inspected({"loss": loss}).run_class in QUIET


def test_a_loss_near_zero_by_design_is_healthy() -> None:
    rng = np.random.default_rng(3)
    loss = np.abs(rng.normal(size=300)) * 4e-4
    loss[150] = 0.2
    signals = {"loss": loss, "rewards/mean": level(300, 0.7), "grad_norm": level(300, 1.1)}
    assert inspected(signals).run_class in QUIET


@pytest.mark.parametrize("jump", [1.3, 0.7])
def test_a_restart_that_does_not_go_on_where_it_was_is_told(jump: float) -> None:
    before, after = level(100, 2.5), level(60, 2.5 * jump, seed=2)
    steps = [*range(1, 101), *range(81, 141)]
    found = inspected({"loss": np.concatenate((before, after))}, steps=steps)
    kinds = {one.kind for one in found.worst.episodes}
    assert EpisodeKind.RESTART_DISCONTINUITY in kinds
    if jump < 1:
        assert found.run_class is RunClass.RESTART_DISCONTINUITY


def test_a_restart_that_goes_on_where_it_was_is_healthy() -> None:
    loss = np.concatenate([level(300, 1.2 * 0.6**epoch, noise=0.02) for epoch in range(3)])
    steps = [*range(1, 651), *range(551, 901)]  # back over an epoch's step down
    again = np.concatenate((loss[:650], loss[550:900]))
    found = inspected({"loss": again}, steps=steps)
    assert found.worst.run.restarts == ((650, 551),)
    assert found.run_class in QUIET


def test_an_attempt_that_diverged_is_not_forgotten_after_the_restart() -> None:
    loss = level(200, 2.5)
    loss[150:] += 2.0
    steps = [*range(1, 201), *range(101, 301)]
    found = inspected({"loss": np.concatenate((loss, level(200, 2.5, seed=4)))}, steps=steps)
    assert found.run_class is RunClass.DIVERGENCE
    assert found.worst.episodes[0].onset_step == 151


def test_an_evaluation_that_breaks_alone_is_told_apart() -> None:
    evals = level(50, 2.2)
    evals[30:] = math.nan
    found = inspected({"loss": falling(50), "eval_loss": evals})
    assert found.run_class is RunClass.EVAL_ONLY_NAN


@pytest.mark.parametrize("num_readings", [1, 2, 3])
def test_three_readings_allow_no_judgement(num_readings: int) -> None:
    found = inspected({"loss": [2.1, 2.12, 2.09][:num_readings]})
    assert found.run_class is RunClass.NOT_JUDGEABLE
    assert found.exit_code == 0
    assert "too few" in found.worst.verdict


def test_a_wide_move_in_a_noisy_short_log_is_not_made_much_of() -> None:
    loss = [1.58, 2.17, 1.56, 1.79, 1.62, 2.05, 1.48]
    assert inspected({"loss": loss}, first=3925, interval=5).run_class in QUIET


def means_of_epochs(loss: np.ndarray, *, per_epoch: int) -> np.ndarray:
    """A loss as the mean of its epoch so far."""
    parts = loss.reshape(-1, per_epoch)
    return (np.cumsum(parts, axis=1) / np.arange(1, per_epoch + 1)).ravel()


@pytest.mark.parametrize("seed", range(5))
def test_a_mean_that_begins_anew_with_each_epoch_is_no_row_of_spikes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loss = 1 + np.exp(-np.arange(1200) / 200) + 0.25 * rng.normal(size=1200)
    epochs = np.arange(1200) // 60
    printed = means_of_epochs(loss, per_epoch=60)
    found = inspected({"loss": printed, "epoch": epochs})
    assert found.run_class in (RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS)
    assert any("mean of its epoch" in warning for warning in found.worst.warnings)
    printed[700:] += 3.0  # within an epoch, and in all after
    assert inspected({"loss": printed, "epoch": epochs}).run_class.is_trouble
    plain = inspected({"loss": loss, "epoch": epochs})
    assert not any("mean of its epoch" in warning for warning in plain.worst.warnings)


def test_readings_far_out_in_a_row_come_by_chance_where_they_are_common() -> None:
    rng = np.random.default_rng(3)
    loss = 0.1 + 0.1 * np.abs(rng.standard_t(1.5, size=2000))
    assert inspected({"loss": loss}).run_class in (RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS)


def test_a_loss_that_still_rises_when_a_short_log_ends_has_diverged() -> None:
    found = inspected({"loss": [0.14, 25e3, 75e3, 28e3, 134e3, 437e3, 212e3, 1.2e6]}, first=408)
    assert found.run_class is RunClass.DIVERGENCE
    assert found.worst.episodes[0].onset_step == 409


def test_a_first_reading_that_was_low_by_chance_is_no_level() -> None:
    loss = [0.003, 0.302, 0.074, 0.010, 0.057, 0.006, 0.014, 0.026, 0.016, 0.012, 0.025, 0.24, 0.09]
    assert inspected({"loss": loss}).run_class in (RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS)
    noise = np.random.default_rng(0).normal(size=400)
    loss = 0.0005 + 0.00085 * np.exp(-np.arange(400) / 150) + 0.00016 * noise
    loss[:4] = (0.00126, 0.00151, 0.00156, 0.00213)
    assert inspected({"loss": loss}).run_class in (RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS)


def test_a_loss_that_grows_with_the_rewards_is_healthy() -> None:
    grown = np.concatenate((level(40, 0.5, noise=0.2), level(60, 30.0, noise=0.3)))
    rewards = np.linspace(0.2, 17.0, 100)
    found = inspected({"loss": grown, "rollout/ep_rew_mean": rewards})
    assert not found.run_class.is_trouble
    assert inspected({"loss": grown, "rollout/ep_rew_mean": rewards[::-1]}).run_class.is_trouble


def test_of_a_loss_without_a_total_a_part_that_breaks_is_nan() -> None:
    parts = {"loss_G": level(30, 1.0), "loss_D": level(30, 0.5), "lr": level(30, 1.0, noise=0)}
    assert not inspected(parts).run_class.is_trouble
    parts["loss_D"][20:] = np.nan
    found = inspected(parts)
    assert found.run_class is RunClass.NAN
    assert "loss_d" in found.worst.verdict.lower()


def test_the_lowest_of_a_few_readings_is_no_level_to_diverge_from() -> None:
    found = inspected({"loss": [2.13, 1.30, 2.17, 1.51, 1.51, 1.46, 1.60]}, first=35, interval=50)
    assert not found.run_class.is_trouble
    found = inspected({"loss": [2.13, 1.30, 1.41, 5.5, 5.6, 5.6, 5.7]}, first=35, interval=50)
    assert found.run_class is RunClass.DIVERGENCE
