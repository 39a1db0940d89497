"""Whether a shard, which has no twin, is still what it was at the end of the last step."""

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
    reductions = (Reduction.SAME, Reduction.SAME)

    def __init__(self, site: Site, every_steps: int) -> None:
        named = [
            (path, parameter)
            for (path, parameter), sharded in zip(site.parameters, site.sharded, strict=True)
            if sharded
        ]
        self._seal = Seal(named, site.parameters[0][1].device)
        self._every = every_steps
        self._tables: dict[int, torch.Tensor] = {}
        self._num_checks = 0
        self._table: torch.Tensor | None = None
        self._found: list[str] = []

    def prepare(self, moment: Moment) -> None:
        """Just before the update: what was sealed after the last one must still be so."""
        self._table = None
        if self._seal.closed:
            self._table = self._seal.gather(self._seal.changes())
            self._num_checks += 1
            self._tables[self._num_checks] = self._table
            self._seal.forget()

    def measure(self, moment: Moment) -> torch.Tensor:
        found = torch.zeros(2, device=self._seal.device)  # number changed, number of the check
        if self._table is not None:
            found[0] = (self._table > 0).sum()
            found[1].fill_(self._num_checks)
        if moment.step % self._every == 0:
            self._seal.close()
        return found

    def finish(self, partials: Values, committed: bool) -> Values:
        changed, check = partials
        if not check:
            return np.array([MISSING])
        table = self._tables.pop(int(check))
        self._tables = {one: kept for one, kept in self._tables.items() if one > check}
        if changed:
            self._found += [str(one) for one in self._seal.name_changes(table)]
        return np.array([changed])

    def findings(self) -> list[str]:
        found, self._found = self._found, []
        return found

    def forget(self) -> None:
        self._seal.forget()

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
