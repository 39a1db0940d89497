"""Moments in full: norms against fp64, and any broken entry found."""

from typing import Any

import pytest
import torch

from foreshock.attachment import site_of
from foreshock.core.signal import Moment
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.signals.optimizer_state import OptimizerStateSignal
from foreshock.update import trained_parameters

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def trained(kind: Any, **settings: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=17, width=16, depth=2, heads=2, context=8))
    optimizer = kind(model.parameters(), lr=1e-2, **settings)
    for _ in range(3):
        model(torch.randint(0, 17, (2, 8))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def read(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    site = site_of(model, optimizer, trained_parameters(model, optimizer))
    attached = OptimizerStateSignal().attach(site)
    assert attached is not None
    with torch.no_grad():
        partials = attached.measure(NOTHING)
    values = attached.finish(partials.double().numpy(), True)
    return dict(zip(attached.series, values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("kind", "settings", "keys"),
    [
        (torch.optim.AdamW, {}, ("exp_avg", "exp_avg_sq")),
        (torch.optim.AdamW, {"amsgrad": True}, ("exp_avg", "exp_avg_sq")),
        (torch.optim.SGD, {"momentum": 0.9}, ("momentum_buffer", None)),
        (torch.optim.RMSprop, {}, (None, "square_avg")),
    ],
)
def test_norms_are_those_of_every_entry(kind: Any, settings: Any, keys: Any) -> None:
    model, optimizer = trained(kind, **settings)
    found = read(model, optimizer)
    for key, name in zip(keys, ("first_moment_norm_exact", "second_moment_norm"), strict=True):
        states = [optimizer.state[p] for p in model.parameters()]
        squares = sum(float(one[key].double().square().sum()) for one in states) if key else 0.0
        assert found[f"{name}/global"] == pytest.approx(squares**0.5, rel=1e-6)
        part = [p for path, p in model.named_parameters() if path.startswith("blocks.1.ffn.")]
        squares = sum(float(optimizer.state[p][key].double().square().sum()) for p in part if key)
        assert found[f"{name}/blocks.1.ffn"] == pytest.approx(squares**0.5, rel=1e-6)
    assert found["num_nonfinite_moments_exact/global"] == 0


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("place", [0, 77, -1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_broken_entry_is_found(key: str, place: int, value: float) -> None:
    model, optimizer = trained(torch.optim.AdamW)
    weight = model.get_submodule("blocks.0.ffn.up").weight
    optimizer.state[weight][key].view(-1)[place] = value
    assert read(model, optimizer)["num_nonfinite_moments_exact/global"] == 1


def test_before_the_first_update_there_is_nothing() -> None:
    model = torch.nn.Linear(3, 2)
    found = read(model, torch.optim.AdamW(model.parameters()))
    assert set(found.values()) == {0.0}


def test_an_optimizer_without_moments_has_no_such_signal() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    site = site_of(model, optimizer, trained_parameters(model, optimizer))
    assert OptimizerStateSignal().attach(site) is None
