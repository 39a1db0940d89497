"""Shards without a twin: hashed when a step ends, hashed again before the next update.

Between the two nobody may write to the weights; what changed did so in memory.
"""

from dataclasses import dataclass

import torch

from foreshock.ranks.digest import digests
from foreshock.ranks.exchange import Group, gather, global_ranks
from foreshock.ranks.placement import local_part
from foreshock.ranks.replicas import Named


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A tensor that is not what it was when it was sealed.

    Attributes:
        name: its path.
        rank: the global rank that holds it.
        written: whether PyTorch counted a write to it since (a weight loaded or edited by
            code); else the change came past its count, as a flipped bit in memory does, and a
            foreach operation on DTensors.
    """

    name: str
    rank: int
    written: bool

    def __str__(self) -> str:
        how = "written to by an operation" if self.written else "no write to it was counted"
        return f"{self.name} changed on rank {self.rank} between two steps ({how})"


class Seal:
    """Watches that tensors do not change between the end of a step and the next update.

    Two reads of the sealed tensors a round, so at fixed steps. Nothing here waits for the
    device, and no rank talks to another before `gather`. On several ranks each seals what it
    holds.

    Args:
        named: (path, tensor): parameters, and moments too if you like; DTensors by their
            local part.
        device: where the digests are kept.
    """

    def __init__(self, named: Named, device: torch.device) -> None:
        self._named = tuple(named)
        self._device = device
        self._sealed: torch.Tensor | None = None
        self._versions: list[tuple[int, int]] = []

    def close(self) -> None:
        """Take the digests; call at the end of a step, after the update."""
        self._sealed = self._digests()
        self._versions = self._counts()

    def forget(self) -> None:
        """Drop the digests: the weights are about to be written to (a rollback, a load)."""
        self._sealed = None

    @property
    def device(self) -> torch.device:
        """Where the digests are kept."""
        return self._device

    @property
    def closed(self) -> bool:
        """Whether there is something to check against."""
        return self._sealed is not None

    def changes(self) -> torch.Tensor:
        """What changed since `close`, `[P]` uint8 on the device; call before the next update.

        0 for what is as it was, or was never sealed; 1 for a change without a counted write; 2
        for one with.
        """
        if self._sealed is None:
            return torch.zeros(len(self._named), dtype=torch.uint8, device=self._device)
        now = self._counts()
        kinds = [1 + (before != after) for before, after in zip(self._versions, now, strict=True)]
        changed = (self._digests() != self._sealed).any(-1)
        return changed * torch.tensor(kinds, dtype=torch.uint8, device=self._device)

    def gather(self, changes: torch.Tensor, group: Group = None) -> torch.Tensor:
        """What changed on every rank, `[W, P]`; one collective of a byte a tensor."""
        return gather(changes, group)

    def name_changes(self, table: torch.Tensor, group: Group = None) -> list[Changed]:
        """Name what `gather` gave; waits for the device, but for no rank."""
        return [
            Changed(name=name, rank=rank, written=kind == 2)
            for rank, row in zip(global_ranks(group), table.tolist(), strict=True)
            for (name, _), kind in zip(self._named, row, strict=True)
            if kind
        ]

    def _digests(self) -> torch.Tensor:
        return digests([local_part(tensor) for _, tensor in self._named], self._device)

    def _counts(self) -> list[tuple[int, int]]:
        # an operation on a DTensor is counted by the DTensor, one on its local data by those
        return [(tensor._version, local_part(tensor).tensor._version) for _, tensor in self._named]
