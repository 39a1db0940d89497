"""What ranks make of a state together: one digest, one label, one fate."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol, final

import torch

from foreshock.core.errors import SnapshotError
from foreshock.ranks.agreement import Ranks
from foreshock.snapshots.codec import digest
from foreshock.snapshots.damage import DamagedError

State = Mapping[str, Any]
"""The training state as this rank holds it, by the names of its parts."""


class Accord(Protocol):
    """What a state on this rank means for all ranks; on several, each method is a meeting.

    Attributes:
        is_spread: whether each rank has a part of the state, and writes what it holds.
    """

    is_spread: bool

    def digest(self, state: State, own: Collection[str]) -> str:
        """Digest of the whole state; `own` names the parts of which each rank has its own."""
        ...

    def label(self, state: State, own: Collection[str], checksum: str) -> str:
        """What a state in memory is labelled with, from this rank's checksum of it."""
        ...

    def fate(self, what: str, error: Exception | None) -> Exception | None:
        """What becomes of something done on every rank: the same error on all, or None."""
        ...

    def everywhere(self, what: str, holds: bool) -> bool:
        """Whether something holds on every rank that has a part of it."""
        ...


@final
class Replicas:
    """Every rank holds the whole state, or there is one rank.

    Args:
        ranks: all of them; None for one.
    """

    is_spread = False

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks

    def digest(self, state: State, own: Collection[str]) -> str:
        return digest(dict(state))

    def label(self, state: State, own: Collection[str], checksum: str) -> str:
        return checksum

    def fate(self, what: str, error: Exception | None) -> Exception | None:
        return fate_of_all(self._ranks, what, error)

    def everywhere(self, what: str, holds: bool) -> bool:
        return holds


def fate_of_all(ranks: Ranks | None, what: str, error: Exception | None) -> Exception | None:
    """The error of the first rank that had one, on every rank; None if none had. Collective.

    It is damage where it is damage on that rank. Memory that ran out comes out as it is, on the
    rank where it did.

    Raises:
        RankError: a rank did not come.
    """
    if isinstance(error, torch.OutOfMemoryError):
        raise error  # no fault of the snapshot's
    if ranks is None or ranks.size == 1:
        return error
    damaged = isinstance(error, DamagedError)
    said = [] if error is None else [damaged, f"{error!s:.2000}"]
    heard = [json.loads(row) for row in ranks.exchange(what, json.dumps(said).encode())]
    failed = [(rank, *one) for rank, one in enumerate(heard) if one]
    if not failed:
        return None
    rank, damaged, text = failed[0]
    kind = DamagedError if damaged else SnapshotError
    return kind(text if "on rank" in text else f"{text} (on rank {rank})")
