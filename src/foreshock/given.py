"""What a Guard was given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foreshock.core.probe import Probe
from foreshock.durable import Disk
from foreshock.recipes import Recipe
from foreshock.recovery import Tell
from foreshock.replicated import (
    plain_module,
)
from foreshock.starts import start_of
from foreshock.stop_signals import StopSignals


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a Guard was given; see there."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    stream: Any
    run_dir: Path
    scheduler: Any
    scaler: Any
    clip: float | None
    accumulate: int
    recipe: Recipe
    probes: Sequence[Probe]
    terms: Sequence[str]
    per_sample: bool
    facts: Mapping[str, Any]
    name: str
    resume: bool | None
    tell: Tell
    disk: Disk
    clock: Callable[[], float]
    stop: StopSignals

    def start(self, stream: Any, num_ranks: int) -> dict[str, dict[str, str]]:
        """What this process starts with, beside what the data says of itself."""
        size = getattr(stream, "batch_size", None)  # a loader's own is not known
        data = {} if stream is None else {**stream.describe(), "batch_size": size}
        return start_of(
            plain_module(self.model),
            self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            clip=self.clip,
            accumulate=self.accumulate,
            facts=self.facts,
            stream=data,
            num_ranks=num_ranks,
        )
