"""One step under overrides, against an optimizer written out by hand in fp64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.core.action import Capability
from foreshock.core.override import (
    AS_BUILT,
    ClipLimit,
    EmbeddingFactor,
    LoweredBeta2,
    LRCap,
    LRFactor,
    Override,
    RaisedEpsilon,
    Tuning,
)
from foreshock.optimizer_settings import overridden
from foreshock.overrides import Overrides
from foreshock.update import Update, trained_parameters

LR, DECAY, EPS, BETAS, MOMENTUM = 0.1, 0.01, 1e-3, (0.9, 0.999), 0.9
STEPS = 8

Make = Callable[[Any], torch.optim.Optimizer]


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    settings: Any = {"lr": LR, "weight_decay": DECAY, "eps": EPS, "betas": BETAS, **options}
    return torch.optim.AdamW(parameters, **settings)


def sgd(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, **options)


OPTIMIZERS: dict[str, Make] = {
    "adamw": adamw,
    "adamw one by one": lambda p: adamw(p, foreach=False),
    "fused adamw": lambda p: adamw(p, fused=True),
    "sgd": sgd,
    "fused sgd": lambda p: sgd(p, fused=True),
}


class ByHand:
    """AdamW and SGD with momentum in Python's floats' precision, one tensor after the other."""

    def __init__(self, weights: list[torch.Tensor], is_adam: bool, embeddings: list[bool]) -> None:
        self.weights = [one.detach().clone().double() for one in weights]
        self.first = [torch.zeros_like(one) for one in self.weights]
        self.second = [torch.zeros_like(one) for one in self.weights]
        self.num_updates = 0
        self._is_adam, self._embeddings = is_adam, embeddings

    def step(
        self,
        grads: list[torch.Tensor],
        *,
        factor: float = 1.0,
        clip: float | None = None,
        eps: float = EPS,
        beta2: float = BETAS[1],
        shrink: float = 1.0,
    ) -> None:
        grads = [
            one.double() * (shrink if embedding else 1.0)
            for one, embedding in zip(grads, self._embeddings, strict=True)
        ]
        norm = math.sqrt(sum(float(one.square().sum()) for one in grads))
        if clip is not None:
            grads = [one * min(1.0, clip / (norm + 1e-6)) for one in grads]
        self.num_updates += 1
        rate, beta1, t = LR * factor, BETAS[0], self.num_updates
        for place, grad in enumerate(grads):
            if not self._is_adam:
                self.first[place] = MOMENTUM * self.first[place] + grad
                self.weights[place] -= rate * self.first[place]
                continue
            self.first[place] = beta1 * self.first[place] + (1 - beta1) * grad
            self.second[place] = beta2 * self.second[place] + (1 - beta2) * grad.square()
            root = (self.second[place] / (1 - beta2**t)).sqrt() + eps
            self.weights[place] *= 1 - rate * DECAY
            self.weights[place] -= rate * (self.first[place] / (1 - beta1**t)) / root


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.body = nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(self.embedding(tokens))))


class Case:
    """A model in fp64 under the gate, and its double by hand."""

    def __init__(self, name: str, *, clip: float | None, scaler: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Small().double()
        self.optimizer = OPTIMIZERS[name](self.model.parameters())
        self.named = trained_parameters(self.model, self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if scaler else None
        self.clip = clip
        self.update = Update(
            self.optimizer, self.named, scaler=self.scaler, clip=clip, model=self.model
        )
        parameters = [one for _, one in self.named]
        embeddings = [path.startswith("embedding") for path, _ in self.named]
        self.by_hand = ByHand(parameters, "adamw" in name, embeddings)

    def step(self, seed: int, factor: float, tuning: Tuning, limit: float = math.inf) -> bool:
        generator = torch.Generator().manual_seed(seed)
        grads = [
            torch.randn(one.shape, generator=generator, dtype=torch.float64)
            for _, one in self.named
        ]
        loss = sum((one * grad).sum() for (_, one), grad in zip(self.named, grads, strict=True))
        self.update.backward(loss)
        sizes, norm = self.update.gradient_sizes()
        used = self.update.shrink_embeddings(norm, sizes.norms, tuning)
        committed = bool(self.update.commit_or_skip(norm, limit, factor, tuning, used))
        if committed:
            rate = LR * factor
            capped = [w * min(rate, cap) + (1 - w) * rate for cap, w in tuning.lr_caps]
            self.by_hand.step(
                grads,
                factor=min([rate, *capped]) / LR,
                clip=tuning.max_norm(self.clip),
                eps=tuning.eps(EPS),
                beta2=min(BETAS[1], tuning.beta2_most),
                shrink=tuning.embedding_factor,
            )
        return committed

    def check(self, tolerance: float) -> None:
        state = self.optimizer.state
        for place, (_, parameter) in enumerate(self.named):
            near = {"rtol": tolerance, "atol": tolerance}
            torch.testing.assert_close(parameter.detach(), self.by_hand.weights[place], **near)
            held = state[parameter]
            first = held.get("exp_avg", held.get("momentum_buffer"))
            torch.testing.assert_close(first, self.by_hand.first[place], **near)
            if "exp_avg_sq" in held:
                torch.testing.assert_close(held["exp_avg_sq"], self.by_hand.second[place], **near)


SPAN: dict[str, Any] = {"first_step": 3, "hold_steps": 2}
ORDERS: dict[str, Override] = {
    "rate": LRFactor(factor=0.3, ramp_steps=3, **SPAN),
    "cap": LRCap(max_lr=0.3 * LR, ramp_steps=3, **SPAN),
    "clip": ClipLimit(max_norm=0.3, ramp_steps=3, **SPAN),
    "eps": RaisedEpsilon(factor=50.0, **SPAN),
    "eps at least": RaisedEpsilon(least=0.2, **SPAN),
    "beta2": LoweredBeta2(value=0.8, **SPAN),
    "embedding": EmbeddingFactor(factor=0.1, ramp_steps=3, **SPAN),
}


def of_adam_only(order: str, name: str) -> bool:
    return order in ("eps", "eps at least", "beta2") and "sgd" in name


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_override_has_its_closed_form(
    name: str, order: str, clip: float | None, scaler: bool
) -> None:
    if of_adam_only(order, name):
        pytest.skip("it has no such setting")
    overrides, one = Overrides(), ORDERS[order]
    overrides.add_record({"kind": one.kind, "key": "plan1/0", **one.to_json()})
    case = Case(name, clip=clip, scaler=scaler)
    plain = Case(name, clip=clip, scaler=scaler)
    groups = [dict(group) for group in case.optimizer.param_groups]
    clips = clip is not None or order == "clip"
    for step in range(1, STEPS + 1):
        assert case.step(step, overrides.lr_factor(step), overrides.tuning(step))
        plain.step(step, 1.0, AS_BUILT)
        case.check(3e-6 if clips else 1e-12)  # the clip is computed in fp32
        for group, before in zip(case.optimizer.param_groups, groups, strict=True):
            assert {**group, "params": 0} == {**before, "params": 0}
        same = all(
            torch.equal(ours, theirs)
            for (_, ours), (_, theirs) in zip(case.named, plain.named, strict=True)
        )
        assert same == (step < 3), "it holds from its first step on, and moves the weights"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_cap_that_does_not_bite_changes_no_bit(name: str) -> None:
    capped, plain = Case(name, clip=None), Case(name, clip=None)
    tuning = Tuning(lr_caps=((LR * 0.3, 1.0), (LR, 0.5)))
    for step in range(1, STEPS + 1):
        capped.step(step, 0.3, tuning)
        plain.step(step, 0.3, AS_BUILT)
    for (_, ours), (_, theirs) in zip(capped.named, plain.named, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_cap_keeps_the_proportion_of_groups_and_puts_their_own_objects_back(
    as_tensor: bool,
) -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    rates: list[Any] = [torch.tensor(one) if as_tensor else one for one in (0.4, 0.04, 4.0)]
    groups = [{"params": [w], "lr": rate} for w, rate in zip(weights, rates, strict=True)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    with overridden(optimizer, 0.5, Tuning(lr_caps=((0.05, 1.0),))):
        used = [float(group["lr"]) for group in optimizer.param_groups]
        assert used == pytest.approx([0.05, 0.005, 0.5])
    assert all(g["lr"] is rate for g, rate in zip(optimizer.param_groups, rates, strict=True))
    optimizer.param_groups[0]["lr"] = 0.0
    with overridden(optimizer, 1.0, Tuning(lr_caps=((0.05, 1.0),))):
        assert float(optimizer.param_groups[2]["lr"]) == 4.0  # of a rate of 0 none is a multiple
    optimizer.param_groups[0]["lr"] = rates[0]
    with overridden(optimizer, 1.0, Tuning(lr_caps=((0.5, 1.0),))):
        assert all(g["lr"] is rate for g, rate in zip(optimizer.param_groups, rates, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_at_once(name: str) -> None:
    overrides = Overrides()
    for number, (order, one) in enumerate(ORDERS.items()):
        if not of_adam_only(order, name):
            overrides.add_record({"kind": one.kind, "key": f"plan1/{number}", **one.to_json()})
    case = Case(name, clip=1.0, scaler=True)
    for step in range(1, STEPS + 1):
        assert case.step(step, overrides.lr_factor(step), overrides.tuning(step))
        case.check(3e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skip_under_overrides_leaves_everything_bit_identical(name: str) -> None:
    case = Case(name, clip=1.0)
    tuning = Tuning(clips=((0.3, 1.0),), embedding_factor=0.1)
    for step in (1, 2):
        assert case.step(step, 0.5, tuning)
    before = [one.detach().clone() for _, one in case.named]
    moments = [
        value.clone()
        for state in case.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    assert not case.step(3, 0.5, tuning, limit=1e-3)
    assert all(torch.equal(one, old) for (_, one), old in zip(case.named, before, strict=True))
    after = [
        value
        for state in case.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    assert all(torch.equal(one, old) for one, old in zip(after, moments, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_embedding_gradient_is_skipped_however_small_its_factor(bad: float) -> None:
    case = Case("fused adamw", clip=1.0)
    tuning = Tuning(embedding_factor=1e-30)
    case.step(1, 1.0, tuning)
    before = [one.detach().clone() for _, one in case.named]
    for _, parameter in case.named:
        parameter.grad = torch.ones_like(parameter)
    case.model.embedding.weight.grad[0, 0] = bad
    sizes, norm = case.update.gradient_sizes()
    used = case.update.shrink_embeddings(norm, sizes.norms, tuning)
    assert not case.update.commit_or_skip(norm, math.inf, 1.0, tuning, used)
    assert all(torch.equal(one, old) for (_, one), old in zip(case.named, before, strict=True))


def test_the_gate_judges_what_came_and_not_what_was_shrunk() -> None:
    case = Case("adamw", clip=None)
    for _, parameter in case.named:
        parameter.grad = torch.ones_like(parameter)
    sizes, norm = case.update.gradient_sizes()
    used = case.update.shrink_embeddings(norm, sizes.norms, Tuning(embedding_factor=0.5))
    numbers = [one.numel() for _, one in case.named]
    assert norm.item() == pytest.approx(math.sqrt(sum(numbers)), rel=1e-6)
    assert used.item() == pytest.approx(math.sqrt(sum(numbers) - 0.75 * numbers[0]), rel=1e-6)
    assert not case.update.commit_or_skip(norm, used.item() * 1.001, 1.0, AS_BUILT, used)


def test_a_sparse_embedding_gradient_is_shrunk() -> None:
    model = nn.Embedding(9, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    update = Update(optimizer, trained_parameters(model, optimizer), model=model)
    before = model.weight.detach().clone()
    update.backward(model(torch.tensor([1, 1, 5])).sum())
    sizes, norm = update.gradient_sizes()
    tuning = Tuning(embedding_factor=0.25)
    used = update.shrink_embeddings(norm, sizes.norms, tuning)
    assert used.item() == pytest.approx(norm.item() / 4)
    assert update.commit_or_skip(norm, math.inf, 1.0, tuning, used)
    moved = (before - model.weight.detach())[:, 0].tolist()
    assert moved == pytest.approx([0, 0.5, 0, 0, 0, 0.25, 0, 0, 0])


def test_settings_come_back_when_the_optimizer_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("fused adamw", clip=1.0)
    tuning = Tuning(eps_factor=9.0, beta2_most=0.5, clips=((0.3, 1.0),))
    group = case.optimizer.param_groups[0]
    before = {key: group[key] for key in ("lr", "eps", "betas")}

    def fail() -> None:
        raise RuntimeError("no")

    case.step(1, 1.0, AS_BUILT)
    monkeypatch.setattr(case.optimizer, "step", fail)
    with pytest.raises(RuntimeError, match="no"):
        case.step(2, 0.5, tuning)
    assert all(group[key] is value for key, value in before.items())


def test_beta2_in_a_tensor_is_lowered_and_given_back() -> None:
    weight = nn.Parameter(torch.ones(2))
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    try:
        optimizer = torch.optim.AdamW([weight], betas=betas, foreach=False, capturable=False)
    except ValueError:
        pytest.skip("this torch wants plain numbers")
    own = optimizer.param_groups[0]["betas"]
    update = Update(optimizer, [("w", weight)])
    assert Capability.LOWER_BETA2 in update.capabilities
    for _ in range(2):
        weight.grad = torch.ones(2)
        _, norm = update.gradient_sizes()
        update.commit_or_skip(norm, math.inf, 1.0, Tuning(beta2_most=0.5))
    assert optimizer.state[weight]["exp_avg_sq"].tolist() == pytest.approx([0.75, 0.75])
    assert optimizer.param_groups[0]["betas"] is own


CAN = {
    "adamw": (torch.optim.AdamW, {}, {"raise_epsilon", "lower_beta2", "reset_moments"}),
    "adamax": (torch.optim.Adamax, {}, {"raise_epsilon", "lower_beta2", "reset_moments"}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}, set()),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {"reset_moments"}),
    "rmsprop": (torch.optim.RMSprop, {}, {"raise_epsilon", "reset_moments"}),
    "adagrad": (torch.optim.Adagrad, {}, {"raise_epsilon", "reset_moments"}),
    "adafactor": (torch.optim.Adafactor, {}, {"reset_moments"}),
    "rprop": (torch.optim.Rprop, {}, set()),
}


@pytest.mark.parametrize("name", CAN)
def test_what_an_optimizer_allows(name: str) -> None:
    kind, options, expected = CAN[name]
    model = nn.Linear(2, 2)
    optimizer = kind(model.parameters(), **options)
    update = Update(optimizer, trained_parameters(model, optimizer), model=model)
    always = {"skip_update", "scale_lr", "tighten_clip", "perturb_weights"}
    assert set(update.capabilities) == always | expected
    with_embedding = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 2))
    optimizer = kind(with_embedding.parameters(), **options)
    update = Update(optimizer, trained_parameters(with_embedding, optimizer), model=with_embedding)
    assert Capability.SHRINK_EMBEDDING_GRADIENTS in update.capabilities
