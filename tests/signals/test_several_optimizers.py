"""Readings of a model that two kinds of optimizers train: each of what has it."""

import numpy as np
import pytest
import torch

import foreshock
from foreshock.core.signal import Level
from foreshock.several import SeveralOptimizers
from tests.test_several import made


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("first", ["muon", "adamw"])
def test_moments_are_of_the_parameters_that_have_them(first, fused):
    model, (muon, adamw), _ = made()
    for group in adamw.param_groups:
        group["fused"] = fused
        group["foreach"] = False
    order = [muon, adamw] if first == "muon" else [adamw, muon]
    optimizer = SeveralOptimizers(order)
    rows = []
    with foreshock.watch(model, optimizer, level=Level.FULL) as watched:

        def step():
            rows.append(slow(model, adamw))
            for one in order:
                one.step()
            rows[-1] |= {"second": second(adamw), "rms_t": stale(rows[-1]["grads"], adamw)}
            optimizer.zero_grad()

        for number in range(4):
            x = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(number))
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            watched.loss(loss)
            step()
    timeline = watched.monitor.timeline
    for name, key in (("rms_t/global", "rms_t"), ("second_moment_rms/global", "second")):
        np.testing.assert_allclose(timeline.values(name), [one[key] for one in rows], rtol=1e-3)
    assert float(timeline.values("rms_t/1").max()) < 2  # of the bias alone: Muon has the matrix
    assert np.isfinite(timeline.values("first_moment_norm/global")).all()
    assert timeline.values("lr/global")[0] == pytest.approx(order[0].param_groups[0]["lr"])


def parameters(adamw):
    return [one for group in adamw.param_groups for one in group["params"]]


def slow(model, adamw):
    return {"grads": [one.grad.detach().clone() for one in parameters(adamw)]}


def second(adamw):
    every = torch.cat([adamw.state[one]["exp_avg_sq"].flatten() for one in parameters(adamw)])
    return float(every.double().mean().sqrt())


def stale(grads, adamw):
    total, count = 0.0, 0
    for grad, one in zip(grads, parameters(adamw), strict=True):
        state = adamw.state[one]
        v = state["exp_avg_sq"].double() / (1 - 0.999 ** float(state["step"]))
        total += float((grad.double() ** 2 / v.clamp(min=1e-16)).sum())
        count += grad.numel()
    return (total / count) ** 0.5
