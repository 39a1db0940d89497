"""The loss and its average against the closed form."""

import math

import pytest
import torch

from foreshock.core.errors import ConfigError
from foreshock.core.signal import Moment, Site
from foreshock.signals.loss import LossSignal

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
        found = dict(zip(attached.series, attached.measure(moment(loss)).tolist(), strict=True))
        expected = average(losses[: place + 1], decay)
        assert found["loss_smoothed/global"] == pytest.approx(expected, rel=1e-6)
        assert found["loss/global"] == pytest.approx(loss, nan_ok=True)
        assert found["loss/ce"] == pytest.approx(loss - 1, nan_ok=True)
        assert found["loss/z"] == 1.0


def test_without_a_finite_loss_there_is_no_average() -> None:
    attached = LossSignal().attach(SITE)
    assert math.isnan(attached.measure(moment(math.nan))[1])
    assert attached.measure(moment(2.0))[1] == pytest.approx(2.0)


def test_its_state_is_rewound() -> None:
    attached = LossSignal().attach(SITE)
    attached.measure(moment(3.0))
    state = attached.state_dict()
    expected = attached.measure(moment(1.0))[1].item()
    attached.measure(moment(100.0))
    attached.load_state_dict(state)
    assert attached.measure(moment(1.0))[1].item() == expected


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay"):
        LossSignal(decay=decay)
