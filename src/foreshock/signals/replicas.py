"""Whether ranks that hold the same weights hold the same bits, and which one does not."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.core.names import NUM_DESYNCED, series_name
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site, Values
from foreshock.ranks.digest import digests
from foreshock.ranks.exchange import num_ranks
from foreshock.ranks.placement import local_part
from foreshock.ranks.replicas import compare, find_replicas


class _AttachedReplicas(Attached):
    series = (series_name(NUM_DESYNCED.name),)

    def __init__(self, site: Site) -> None:
        self._named = site.parameters
        self._device = site.parameters[0][1].device
        self._replicas = find_replicas(self._named, self._device)
        self._tables: dict[int, torch.Tensor] = {}
        self._num_checks = 0
        self._found: list[str] = []

    @property
    def useful(self) -> bool:
        """Whether anything has a twin."""
        return any(self._replicas.sets)

    def measure(self, moment: Moment) -> torch.Tensor:
        own = digests([local_part(tensor) for _, tensor in self._named], self._device)
        table = self._replicas.gather(own, None)
        self._num_checks += 1
        self._tables[self._num_checks] = table
        apart = self._num_apart(table)
        return torch.stack([apart, torch.full_like(apart, self._num_checks)])

    def _num_apart(self, table: torch.Tensor) -> torch.Tensor:
        """Parameters whose replicas differ, `[]`, from digests `[W, P, 2]`."""
        rank_of = {rank: row for row, rank in enumerate(self._replicas.ranks)}
        apart = torch.zeros(table.shape[1], dtype=torch.bool, device=table.device)
        for ranks, places in self._alike():
            rows = table[[rank_of[rank] for rank in ranks]][:, places]
            apart[places] |= (rows != rows[:1]).any(-1).any(0)
        return apart.sum().to(torch.float32)

    def _alike(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """Sets of ranks, each with the places of the parameters that they share."""
        found: dict[tuple[int, ...], list[int]] = {}
        for place, sets in enumerate(self._replicas.sets):
            for ranks in sets:
                found.setdefault(tuple(ranks), []).append(place)
        return list(found.items())

    def finish(self, partials: Values, committed: bool) -> Values:
        apart, check = partials
        table = self._tables.pop(int(check))
        self._tables = {one: kept for one, kept in self._tables.items() if one > check}
        if apart:
            self._found += [str(one) for one in compare(table.cpu(), self._replicas)]
        return np.array([apart])

    def findings(self) -> list[str]:
        found, self._found = self._found, []
        return found


@dataclass(frozen=True, kw_only=True)
class ReplicasSignal(Signal):
    """Number of parameters whose replicas differ in any bit, at fixed steps after the update.

    Replicas under DDP and HSDP must stay bit-identical; one that does not trains another model
    and spoils the mean for all. With three or more the odd rank is named, with two that they
    differ. Nothing on one rank, and for shards without a twin (see `sealed_shards`). One
    digest reads the parameters five to ten times, hence not every step.
    """

    name: ClassVar[str] = "replicas"
    unit: ClassVar[str] = "tensors"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "five to ten over the parameters when due, and a collective"
    interval_steps: int = 100

    def attach(self, site: Site) -> Attached | None:
        if num_ranks(None) == 1:
            return None
        attached = _AttachedReplicas(site)
        return attached if attached.useful else None
