"""The recovery scenario, written once: every integration trains it in its own framework.

A row whose gradient is NaN is skipped, a bad region is rolled back and set aside, the run is
killed and goes on; and the weights are those of the framework's own loop, untouched, on the
rows that survived.
"""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from foreshock.core.policy import Policy
from foreshock.data.stream import Stage, Stream
from foreshock.durable import RealDisk
from foreshock.recipes import Cadence, Recipe, standard
from foreshock.run_view import view_run
from tests.data.lineage import lineage

VOCABULARY = 17
LENGTH = 12
NUM_ROWS = 4000
BATCH = 8
STEPS = 110
SEED = 3
LR = 1e-2
CLIP = 1.0
WIDTH = 16
NAN_AT = 8 * 120 + 3
BAD_FROM, BAD_TO = 8 * 45, 8 * 53


def order() -> list[int]:
    """Rows in the order in which Foreshock's stream gives them out."""
    stream = Stream(
        [Stage(name="train", sources={"train": list(range(NUM_ROWS))}, repeats=None)],
        batch_size=BATCH,
        seed=SEED,
    )
    return [stream.order.locate(place).index for place in range(NUM_ROWS)]


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens `[LENGTH]`; some are of another language, and one asks for NaN."""

    def __init__(self) -> None:
        placed = order()
        self.bad = frozenset(placed[BAD_FROM:BAD_TO])
        self.nan = placed[NAN_AT]

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([1, index])
        start = rng.integers(VOCABULARY - 1)
        tokens = (start + np.arange(LENGTH)) % (VOCABULARY - 1)
        tokens[rng.integers(LENGTH)] = rng.integers(VOCABULARY - 1)
        if index in self.bad:
            tokens = ((start + 5 * np.arange(LENGTH)) % (VOCABULARY - 1))[::-1].copy()
        if index == self.nan:
            tokens[0] = VOCABULARY - 1
        row = torch.from_numpy(tokens)
        return {"input_ids": row, "labels": row}


def stream(batch_size: int = BATCH, rank: int = 0, world_size: int = 1) -> Stream:
    """The rows for loops of the user's own; `batch_size` over all ranks."""
    return Stream(
        [Stage(name="train", sources={"train": Rows()}, repeats=None)],
        batch_size=batch_size,
        seed=SEED,
        rank=rank,
        world_size=world_size,
    )


class _NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.full_like(grad, torch.nan)


class Model(nn.Module):
    """Predicts the next token from this one; a row that begins with the last token has NaN."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        width = WIDTH
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.dropout(F.gelu(self.hidden(self.embedding(input_ids)))))
        if bool((input_ids[:, 0] == VOCABULARY - 1).any()):
            logits = _NanBackward.apply(logits)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def model(dropout: float = 0.0) -> Model:
    """The model in its first state; a skipped step draws its dropout, so the twin has none."""
    torch.manual_seed(SEED)
    return Model(dropout=dropout)


def blocks(section: str) -> list[str]:
    """What stands in code blocks in a section of the documentation's page on integrations."""
    page = (Path(__file__).parents[2] / "docs/integrations.md").read_text()
    (text,) = re.findall(
        rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE
    )
    return re.findall(r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def example(section: str) -> str:
    """The first of them."""
    return blocks(section)[0]


def killed(call: str) -> None:
    """Run Python code in a process of its own, which has to end by kill -9."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def recipe() -> Recipe:
    """Without data rules, at a cadence for short runs."""
    cadence = Cadence(memory_steps=5, memory_keep=3, disk_steps=20, disk_keep=3)
    return dataclasses.replace(
        standard({"rules": False}), policy=Policy(), cadence=cadence, lag_steps=1
    )


def survivors(run_dir: Path) -> list[list[int]]:
    """The rows of each update that counts, in order; the skipped one is left out."""
    view = view_run(RealDisk(), run_dir)
    placed = order()
    rows = [[placed[place] for place in places] for places in lineage(view).values()]
    return [batch for batch in rows if placed[NAN_AT] not in batch]


def check(
    run_dir: Path,
    trained: nn.Module,
    untouched: Callable[[list[list[int]]], nn.Module],
    *,
    survivors: Callable[[Path], list[list[int]]] = survivors,
    num_updates: int | None = STEPS - 1,
) -> None:
    """What any framework must come to.

    Args:
        run_dir: of the guarded run.
        trained: its model at the end.
        untouched: trains a model on these batches in the framework's own loop.
        survivors: the rows of each update that counts.
        num_updates: how many these are; None where it depends on what was set aside, which is
            then at most a third.
    """
    rows = Rows()
    view = view_run(RealDisk(), run_dir)
    kinds = [record["kind"] for record in view.records]
    assert "plan" in kinds
    batches = survivors(run_dir)
    assert len(batches) == num_updates if num_updates else len(batches) > STEPS * 2 / 3
    seen = [row for batch in batches for row in batch]
    assert len(seen) == len(set(seen))
    learnt = [row for row in seen if row in rows.bad]
    assert len(learnt) == 0, f"{len(learnt)} bad rows were trained"
    assert rows.nan not in seen
    twin = untouched(batches)
    for mine, other in zip(trained.state_dict().items(), twin.state_dict().items(), strict=True):
        assert mine[0] == other[0]
        assert torch.equal(mine[1], other[1]), mine[0]


def train(
    guard: Any, model: nn.Module, after_step: Callable[[Any], Any] = lambda guard: None
) -> None:
    """The loop of those who keep their own, under a guard."""
    with guard:
        for batch in guard:
            guard.step(model(**batch)["loss"])
            after_step(guard)


def weights(trained: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained.parameters()]
