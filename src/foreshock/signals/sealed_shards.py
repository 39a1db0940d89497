"""Whether a shard, which has no twin, is still what it was at the end of the last step."""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.core.names import NUM_CHANGED_SHARDS, series_name
from foreshock.core.signal import (
    MISSING,
    Attached,
    Exactness,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)
from foreshock.ranks.exchange import num_ranks
from foreshock.ranks.shards import Seal


class _AttachedSeal(Attached):
    series = (series_name(NUM_CHANGED_SHARDS.name),)
    reductions = (Reduction.SUM, Reduction.SAME)

    def __init__(self, site: Site, every_steps: int) -> None:
        named = [
            (path, parameter)
            for (path, parameter), sharded in zip(site.parameters, site.sharded, strict=True)
            if sharded
        ]
        self._seal = Seal(named, site.parameters[0][1].device)
        self._every = every_steps
        self._broken: deque[torch.Tensor] = deque()
        self._found: list[str] = []
        self._checked: torch.Tensor | None = None

    def prepare(self, moment: Moment) -> None:
        """Just before the update: what was sealed after the last one must still be so."""
        self._checked = None
        if self._seal.closed:
            self._checked = self._seal.broken()
            self._broken.append(self._checked)
            self._seal.forget()

    def measure(self, moment: Moment) -> torch.Tensor:
        device = self._seal.device
        found = torch.zeros(2, device=device)
        if self._checked is not None:
            found[0], found[1] = self._checked.sum(), 1.0
        if moment.step % self._every == 0:
            self._seal.close()
        return found

    def finish(self, partials: Values, committed: bool) -> Values:
        changed, checked = partials
        if not checked:
            return np.array([MISSING])
        broken = self._broken.popleft()
        if changed:  # the same on every rank: all of them ask for names
            self._found += [str(one) for one in self._seal.name_changes(broken)]
        return np.array([changed])

    def findings(self) -> list[str]:
        found, self._found = self._found, []
        return found

    def forget(self) -> None:
        self._seal.forget()
        self._broken.clear()

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.forget()


@dataclass(frozen=True, kw_only=True)
class SealedShardsSignal(Signal):
    """Number of shards that changed between the end of a step and the next update.

    Nothing should write to weights there: a change that no operation made is a flipped bit in
    memory. Rank and parameter are named, and whether an operation wrote. Checked after every
    `every_steps` steps, by digests that read the shards five to ten times, twice. Only where
    parameters are sharded: replicas are compared with each other.

    Args:
        every_steps: steps between two checks.
    """

    name: ClassVar[str] = "sealed_shards"
    unit: ClassVar[str] = "tensors"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "ten to twenty over the shards when due"
    every_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "every_steps")

    def attach(self, site: Site) -> Attached | None:
        if num_ranks(None) == 1 or not any(site.sharded):
            return None
        return _AttachedSeal(site, self.every_steps)
