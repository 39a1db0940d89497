"""Cached healthy runs of several sizes, from which trials of the injection matrix fork."""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.recovery.matrix_program import BATCH_SIZE, matrix_program
from foreshock import recipes
from foreshock.core.program import Loss, Program, Settings
from foreshock.core.signal import Level
from foreshock.driver import build, guard_for, train

NAME: Final = "injection_matrix"
ANCHOR_STEP: Final = 240
"""Steps of an anchor: thresholds are warm, the loss has left its steep part."""
DISK_STEPS: Final = 20
"""Steps between the snapshots of an anchor."""
MAX_STEPS: Final = 460
"""What the schedule is made for; no trial goes as far."""
ANCHORS: Final = 10
"""Anchors of a size and variant; seeds beyond see other data from the same ones."""
EXTRA_SOURCE: Final = "crawl-2026-17"
"""A source that healthy runs never come to."""

SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "small": {"width": 64, "depth": 2},
    "large": {"width": 128, "depth": 4, "lr": 4e-3},
}
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "fp16": {"precision": "fp16"},
    "warming": {"warmup_steps": 2 * ANCHOR_STEP},
    "accumulated": {"accumulate": 2, "batch_size": BATCH_SIZE // 2},
}
"""What a program may be besides, for faults that need it: with a loss scale and rounding to
half precision, half way through its warm-up, or with two micro-steps."""


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A healthy run up to `ANCHOR_STEP`, as its run directory holds it; never written to again.

    Attributes:
        size: of `SIZES`.
        variant: of `VARIANTS`.
        seed: of model and data.
    """

    size: str
    variant: str
    seed: int
    run_dir: Path

    @property
    def name(self) -> str:
        """Unique among anchors."""
        return f"{self.size}-{self.variant}-{self.seed}"

    @property
    def snapshot_id(self) -> str:
        """Its state at the end, with what watched it."""
        return snapshot_at(ANCHOR_STEP)

    def program(self, replaced: Mapping[str, Any] | None = None) -> Program:
        """The program, built anew; `replaced` may be filled while it runs."""
        return build(diagnosed_program, _settings(self.size, self.variant, self.seed, replaced))


def snapshot_at(step: int) -> str:
    """The name of an anchor's snapshot of a step."""
    return f"{step:08d}-a00001"


def anchor(size: str, variant: str, seed: int, folder: Path) -> Anchor:
    """The anchor of a size, variant and seed; trained if it is not there yet.

    Raises:
        RuntimeError: it is not healthy.
    """
    name = f"{size}-{variant}-{seed}-{ANCHOR_STEP}-{DISK_STEPS}-{MAX_STEPS}"
    run_dir = folder / name
    one = Anchor(size=size, variant=variant, seed=seed, run_dir=run_dir)
    if run_dir.exists():
        return one
    folder.mkdir(parents=True, exist_ok=True)
    begun = folder / f"{run_dir.name}.{os.getpid()}.begun"
    shutil.rmtree(begun, ignore_errors=True)
    program = one.program()
    guard = guard_for(program, name=NAME, run_dir=begun, recipe=recipe(), max_steps=ANCHOR_STEP)
    with guard:
        train(program, guard)
    if guard.book.incidents:
        raise RuntimeError(f"anchor {one.name} had an incident: {guard.book.incidents}")
    try:
        begun.rename(run_dir)
    except OSError:  # another process was faster: the same run
        shutil.rmtree(begun)
    return one


@cache
def recipe() -> recipes.Recipe:
    """The standard one with every signal; without rules at the door, which would refuse data."""
    cadence = {"disk_steps": DISK_STEPS, "disk_keep": 4, "asynchronous": False}
    return recipes.standard({"rules": False, "level": Level.FULL, "cadence": cadence})


def diagnosed_program(settings: Settings) -> Program:
    """The matrix program with the loss of each sample, and what its variant has besides."""
    program = dataclasses.replace(
        matrix_program(settings),
        loss=sample_losses,
        per_sample=True,
        accumulate=settings.get("accumulate", 1),
        precision=settings.get("precision", "fp32"),
        name=NAME,
    )
    if program.precision != "fp16":
        return program
    for module in program.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(_in_half)
    return dataclasses.replace(program, scaler=torch.amp.GradScaler("cpu"))


def sample_losses(model: nn.Module, tokens: torch.Tensor) -> Loss:
    """Mean cross-entropy in nats of `tokens` `[B, T + 1]`, and that of each sample."""
    logits = model(tokens[:, :-1])
    wanted = tokens[:, 1:]
    losses = cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    of_samples = losses.view_as(wanted).mean(dim=1)
    return Loss(total=of_samples.mean(), per_sample=of_samples)


class _Half(torch.autograd.Function):
    """Rounds to half precision on the way forward, and the gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        return gradients[0].half().float()


def _in_half(module: nn.Module, inputs: Any, output: torch.Tensor) -> Any:
    return _Half.apply(output)


def _settings(
    size: str, variant: str, seed: int, replaced: Mapping[str, Any] | None = None
) -> Settings:
    overrides: dict[str, Any] = {
        **SIZES[size],
        **VARIANTS[variant],
        "extra_source": EXTRA_SOURCE,
    }
    if replaced is not None:
        overrides["replaced"] = replaced
    return Settings(seed=seed, max_steps=MAX_STEPS, overrides=overrides)
