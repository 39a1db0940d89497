"""Small real programs for the tests of the Guard, and how a run of one is driven."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from foreshock.core.errors import Halted
from foreshock.core.policy import Policy
from foreshock.data.stream import Stage, Stream
from foreshock.guard import Guard
from foreshock.recipes import Cadence, Recipe, standard

VOCABULARY = 17
LENGTH = 12
CADENCE = Cadence(memory_steps=5, memory_keep=3, disk_steps=20, disk_keep=3)


class Sentences:
    """Samples `[LENGTH]` of a cycle with one wrong token; poisoned ones are another language."""

    def __init__(self, size: int, *, seed: int = 0, poisoned: bool = False) -> None:
        self._size, self._seed, self._poisoned = size, seed, poisoned

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng([self._seed, index])
        step = 5 if self._poisoned else 1
        start = rng.integers(VOCABULARY)
        tokens = (start + step * np.arange(LENGTH)) % VOCABULARY
        if self._poisoned:
            return torch.from_numpy(tokens[::-1].copy())
        tokens[rng.integers(LENGTH)] = rng.integers(VOCABULARY)  # so that the loss stays above 0
        return torch.from_numpy(tokens)


class TinyModel(nn.Module):
    """Embedding, one block of causal attention with dropout, and a tied head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.embedding.weight, std=0.2)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, bias=False, batch_first=True)
        self.first_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1))
        self.out = nn.Linear(2 * width, width)
        self.last_norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        size = tokens.shape[1]
        mask = torch.full((size, size), -torch.inf).triu(1)
        normed = self.first_norm(hidden)
        hidden = hidden + self.attention(normed, normed, normed, attn_mask=mask)[0]
        hidden = hidden + self.out(self.mlp(hidden))
        return self.last_norm(hidden) @ self.embedding.weight.T


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))


class Average:
    """An exponential moving average of the weights, as user state."""

    def __init__(self, model: nn.Module) -> None:
        self._shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self._shadow[name].lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shadow = dict(state)


@dataclasses.dataclass
class Training:
    """Everything a run is made of."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    stream: Any
    scheduler: Any = None
    scaler: Any = None
    track: dict[str, Any] = dataclasses.field(default_factory=dict)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "fused_sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
}

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 9)),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=500),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 400),
}


def clean_stages(size: int = 4000) -> list[Stage]:
    return [Stage(name="clean", sources={"clean": Sentences(size)}, repeats=None)]


def poisoned_stages(before: int, poison: int, after: int = 2000) -> list[Stage]:
    """`before` clean samples, `poison` poisoned ones, then clean ones."""
    return [
        Stage(name="before", sources={"a": Sentences(before, seed=1)}),
        Stage(name="poison", sources={"p": Sentences(poison, seed=2, poisoned=True)}),
        Stage(name="after", sources={"b": Sentences(after, seed=3)}),
    ]


def make(
    *,
    optimizer: str = "adamw",
    scheduler: str | None = "cosine",
    scaler: bool = False,
    stages: Any = None,
    batch_size: int = 8,
    tracked: bool = False,
    seed: int = 0,
    width: int = 16,
) -> Training:
    """A training in its first state; the global generators are seeded."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = TinyModel(width)
    built = OPTIMIZERS[optimizer](model.parameters())
    training = Training(
        model=model,
        optimizer=built,
        stream=Stream(stages or clean_stages(), batch_size=batch_size, seed=seed),
        scheduler=SCHEDULERS[scheduler](built) if scheduler else None,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
        if scaler
        else None,
    )
    if tracked:
        training.track = {
            "torch": torch.Generator().manual_seed(seed),
            "numpy": np.random.default_rng(seed),
            "mt": np.random.Generator(np.random.MT19937(seed)),
            "python": random.Random(seed),
            "average": Average(model),
        }
    return training


def recipe(*, cadence: Cadence = CADENCE, lag_steps: int = 1, **policy: Any) -> Recipe:
    """The standard recipe without data rules, at a cadence for short runs."""
    return dataclasses.replace(
        standard({"rules": False}),
        policy=Policy(**policy),
        cadence=cadence,
        lag_steps=lag_steps,
    )


def guarded(training: Training, run_dir: Path, **options: Any) -> Guard:
    """The Guard of a training, everything tracked."""
    options.setdefault("recipe", recipe())
    options.setdefault("clock", lambda: 0.0)
    guard = Guard(
        training.model,
        training.optimizer,
        training.stream,
        run_dir=run_dir,
        scheduler=training.scheduler,
        scaler=training.scaler,
        **options,
    )
    for name, thing in training.track.items():
        guard.track(name, thing)
    return guard


Hook = Callable[[Guard, Training], None]


def run(training: Training, guard: Guard, *, before_step: Hook | None = None) -> str:
    """Train to the end or a halt, drawing from every tracked generator; return the digest."""
    training.model.train()
    with guard:
        try:
            for batch in guard:
                if before_step is not None:
                    before_step(guard, training)
                take_step(training, guard, batch)
        except Halted as halt:
            assert str(halt) == guard.halted
        else:
            assert guard.halted is None
        return guard.digest()


def take_step(training: Training, guard: Guard, batch: torch.Tensor) -> None:
    loss = loss_of(training.model, batch)
    if training.track:
        drawn = torch.rand((), generator=training.track["torch"]).item()
        drawn += training.track["numpy"].random() + training.track["mt"].random()
        loss = loss * (1 + 0.01 * (drawn + training.track["python"].random()))
    guard.step(loss)
    if training.track:
        training.track["average"].update(training.model)
