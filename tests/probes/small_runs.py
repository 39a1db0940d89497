"""A small byte model trained on three kinds of text, with its probes measured along the way."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from foreshock.core.probe import Probe
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.programs import next_byte_loss
from foreshock.lab.text import Kind, TextWindows, load_text
from foreshock.lab.text_probes import text_probes
from foreshock.verification import measure

CONTEXT = 128
EVERY = 10
KINDS: tuple[Kind, ...] = ("code", "english", "cyrillic")
SHARES = (0.55, 0.35, 0.10)
LANGUAGE = "held_out_loss/cyrillic"


@dataclass
class SmallRun:
    """A training that is measured every `EVERY` steps."""

    seed: int
    width: int = 64
    depth: int = 2
    batch_size: int = 16
    num_items: int = 32
    lr: float = 2e-3
    settles_at: int | None = None  # from this step on a fifth of the rate
    steps: int = 0
    measured: list[dict[str, list[float]]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = GPTConfig(width=self.width, depth=self.depth, context=CONTEXT)
        self.model = GPT(config, torch.Generator().manual_seed(self.seed))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr, betas=(0.9, 0.95))
        self.rng = np.random.default_rng(self.seed)
        self.probes: Sequence[Probe] = text_probes(CONTEXT, KINDS, num_items=self.num_items)
        self.windows = [
            TextWindows(load_text(kind, limit_bytes=400_000, seed=0, held_out=0.2).train, CONTEXT)
            for kind in KINDS
        ]

    def train(self, steps: int, *, measuring: bool = True) -> None:
        for _ in range(steps):
            self.steps += 1
            loss = next_byte_loss(self.model, self._batch())
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            warm = min(1.0, self.steps / 30)
            if self.settles_at is not None and self.steps >= self.settles_at:
                warm = 0.2
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * warm
            self.optimizer.step()
            self.losses.append(float(loss.detach()))
            if measuring and self.steps % EVERY == 0:
                self.measured.append(measure(self.model, self.probes))

    def fork(self) -> "SmallRun":
        """The same run, to go on differently."""
        return copy.deepcopy(self)

    def damage_language(self, seed: int = 0, scale: float = 1.0) -> None:
        """Embedding rows of the bytes that only the other script has become noise.

        Their second moments are spoiled with them, as one wrong update would do it, so that
        the next steps do not heal them.
        """
        weight = self.model.embed.weight
        with torch.no_grad():
            rows = weight[0x80:]
            noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))
            rows.copy_(noise * rows.std() * scale)
        self.optimizer.state[weight]["exp_avg_sq"][0x80:] = 1e6

    def _batch(self) -> torch.Tensor:
        kinds = self.rng.choice(len(KINDS), size=self.batch_size, p=SHARES)
        rows: list[Any] = [
            self.windows[kind].windows[self.rng.integers(len(self.windows[kind]))] for kind in kinds
        ]
        return torch.from_numpy(np.stack(rows).astype(np.int64))
