"""Small models of every awkward kind, with gradients, and what a step offers to signals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from foreshock.attachment import site_of
from foreshock.core.signal import Moment
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.update import Update, trained_parameters


@dataclass
class Case:
    """A model, what feeds it, and the site and update that a Guard would make of it."""

    model: nn.Module
    feed: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer = field(init=False)
    update: Update = field(init=False)
    scaler: Any = None
    clip: float | None = 1.0
    terms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        parameters = trained_parameters(self.model, self.optimizer)
        self.update = Update(self.optimizer, parameters, scaler=self.scaler, clip=self.clip)
        self.site = site_of(
            self.model,
            self.optimizer,
            parameters,
            scaler=self.scaler,
            clip=self.clip,
            terms=self.terms,
        )

    def moment(self, micro_steps: int = 1) -> Moment:
        """Forward and backward, and what it offers."""
        total = torch.zeros(())
        for _ in range(micro_steps):
            loss = self.feed().float().square().mean() / micro_steps
            self.update.backward(loss)
            total = total + loss.detach()
        sizes, norm = self.update.gradient_sizes()
        return Moment(
            loss=total,
            grad_norms=sizes.norms,
            grad_largest=sizes.largest,
            grad_num_zeros=sizes.num_zeros,
            grad_norm=norm,
            lr=self.update.lr(1.0),
            terms=dict.fromkeys(self.terms, total / 2),
        )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens)))


class Partly(nn.Module):
    """An unused layer, a frozen one, a parameter without elements, a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.unused, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.frozen(self.blocks[1](self.blocks[0](self.blocks[0](x)))))
        return self.norm(x) + self.empty.sum()


class Lone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def _on(model: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> Case:
    x = torch.randn(shape).to(dtype)
    model = model.to(dtype)
    return Case(model, lambda: model(x))


def _sparse() -> Case:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.LayerNorm(4))
    return Case(model, lambda: model(torch.tensor([1, 1, 1, 5])))


def _normed(dtype: torch.dtype) -> Case:
    return _on(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), 8, 4, dtype=dtype)


def _tied() -> Case:
    model = Tied()
    return Case(model, lambda: model(torch.arange(7)))


def _gpt() -> Case:
    model = GPT(GPTConfig(vocab=11, width=8, depth=2, heads=2, context=6))
    tokens = torch.arange(12).reshape(2, 6) % 11
    return Case(model, lambda: model(tokens))


CASES: dict[str, Callable[[], Case]] = {
    "a small GPT": _gpt,
    "tied weights": _tied,
    "unused, frozen, empty, called twice": lambda: _on(Partly(), 8, 4),
    "a single scalar parameter": lambda: _on(Lone(), 8),
    "the model is a norm layer": lambda: _on(nn.RMSNorm(4), 8, 4),
    "fp64": lambda: _normed(torch.float64),
    "fp16": lambda: _normed(torch.float16),
    "bf16": lambda: _normed(torch.bfloat16),
    "complex": lambda: _complex(),  # noqa: PLW0108 - defined below
    "sparse gradients": _sparse,
    "no norm layer": lambda: _on(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), 8, 4),
    "weight norm": lambda: _on(
        nn.Sequential(nn.LayerNorm(4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))), 8, 4
    ),
}


def _complex() -> Case:
    layer = nn.Linear(4, 6, dtype=torch.complex64)
    x = torch.randn(8, 4, dtype=torch.complex64)
    return Case(layer, lambda: layer(x).abs())


def case(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


def moment_of(gradients: list[torch.Tensor], **fields: Any) -> Moment:
    """What a step with these gradients offers, by way of the real norms."""
    parameters = [nn.Parameter(torch.zeros_like(one)) for one in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    named = [(f"layers.{i}.weight", one) for i, one in enumerate(parameters)]
    sizes, norm = Update(torch.optim.SGD(parameters, lr=0.1), named).gradient_sizes()
    given = {
        "loss": torch.zeros(()),
        "grad_norms": sizes.norms,
        "grad_largest": sizes.largest,
        "grad_num_zeros": sizes.num_zeros,
        "grad_norm": norm,
        "lr": 0.1,
    }
    return Moment(**(given | fields))
