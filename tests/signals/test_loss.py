"""The loss and its average against the closed form."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from foreshock.core.errors import ConfigError
from foreshock.core.signal import Moment, Reduction, Site
from foreshock.signals.loss import LossSignal
from tests.signals.recording import values_of

SMOOTHED = "loss_smoothed/global"

SITE = Site(model=None, optimizer=None, parameters=(("w", torch.zeros(1)),), terms=("ce", "z"))


def moment(loss: float) -> Moment:
    terms = {"ce": torch.tensor([loss - 1]), "z": torch.tensor(1.0)}
    none = torch.zeros(1)
    return Moment(loss=torch.tensor(loss), grad_norms=none, grad_norm=none[0], lr=0.1, terms=terms)


def average(losses: list[float], decay: float) -> float:
    kept = [one for one in losses if math.isfinite(one)]
    weights = [decay**age for age in reversed(range(len(kept)))]
    return sum(w * one for w, one in zip(weights, kept, strict=True)) / sum(weights)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.98])
def test_smoothed_loss_is_the_weighted_mean_of_the_finite_ones(decay: float) -> None:
    losses = [3.0, math.nan, 2.5, math.inf, 1e30, 2.0, -math.inf, 0.5]
    attached = LossSignal(decay=decay).attach(SITE)
    for place, loss in enumerate(losses):
        found = values_of(attached, moment(loss))
        expected = average(losses[: place + 1], decay)
        assert found["loss_smoothed/global"] == pytest.approx(expected, rel=1e-6)
        assert found["loss/global"] == pytest.approx(loss, nan_ok=True)
        assert found["loss/ce"] == pytest.approx(loss - 1, nan_ok=True)
        assert found["loss/z"] == 1.0


def test_without_a_finite_loss_there_is_no_average() -> None:
    attached = LossSignal().attach(SITE)
    assert math.isnan(values_of(attached, moment(math.nan))[SMOOTHED])
    assert values_of(attached, moment(2.0))[SMOOTHED] == pytest.approx(2.0)


def test_its_state_is_rewound() -> None:
    attached = LossSignal().attach(SITE)
    values_of(attached, moment(3.0))
    state = attached.state_dict()
    expected = values_of(attached, moment(1.0))[SMOOTHED]
    values_of(attached, moment(100.0))
    attached.load_state_dict(state)
    assert values_of(attached, moment(1.0))[SMOOTHED] == expected


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay"):
        LossSignal(decay=decay)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("level", [0.0, 10.0, 1e4])
def test_the_spread_of_samples_is_right_however_small_beside_their_mean(
    level: float, spread: float
) -> None:
    samples = level + spread * torch.randn(64, generator=torch.Generator().manual_seed(0)).double()
    site = dataclasses.replace(SITE, terms=(), per_sample=True)
    given = dataclasses.replace(moment(1.0), samples_loss=samples, terms={})
    found = values_of(LossSignal().attach(site), given)
    true = samples.numpy()
    assert found["loss_sample_std/global"] == pytest.approx(true.std(), rel=1e-5)
    assert found["loss_largest_sample/global"] == pytest.approx(true.max(), rel=1e-6)


def test_the_spread_over_ranks_is_that_of_all_samples() -> None:
    site = dataclasses.replace(SITE, terms=(), per_sample=True)
    parts = torch.tensor([[1.0, 2.0, 3.0], [7.0, 7.5, 9.0]])
    attached = LossSignal().attach(site)
    ranks = [
        attached.measure(dataclasses.replace(moment(1.0), samples_loss=part, terms={}))
        for part in parts
    ]
    assert list(attached.reductions) == [
        Reduction.MEAN, Reduction.MAX, Reduction.MEAN, Reduction.EACH,
    ]  # fmt: skip
    loss, largest, within, _ = torch.stack(ranks).T.tolist()
    means = [float(rank[3]) for rank in ranks]
    joined = np.array([np.mean(loss), max(largest), np.mean(within), *means])
    found = dict(zip(attached.series, attached.finish(joined, True), strict=True))
    assert found["loss_sample_std/global"] == pytest.approx(parts.numpy().std(), rel=1e-6)
    assert found["loss_largest_sample/global"] == 9.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_sample_shows(bad: float) -> None:
    site = dataclasses.replace(SITE, terms=(), per_sample=True)
    given = dataclasses.replace(moment(1.0), samples_loss=torch.tensor([1.0, bad, 2.0]), terms={})
    found = values_of(LossSignal().attach(site), given)
    assert not math.isfinite(found["loss_largest_sample/global"])
    assert math.isnan(found["loss_sample_std/global"])
