"""What all ranks do together: a failure of one is the same error on every one."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.api import CheckpointException

from foreshock.core.errors import SnapshotError
from foreshock.ranks.exchange import Group, exchange
from foreshock.snapshots.damage import DamagedError

CPU = torch.device("cpu")


class LostRankError(SnapshotError):
    """A rank died or does not answer: nothing that all do together can go on."""


class UnlikeRanksError(SnapshotError):
    """Ranks hold different values of what they should all have alike."""


def on_every_rank(doing: str, do: Callable[[], Any], group: Group) -> list[Any]:
    """Do it on every rank; what came of it on each, as JSON. Collective.

    Args:
        doing: what it is, for messages.
        do: what to do on this rank; returns what JSON can hold.
        group: the ranks; it needs a backend for CPU tensors.

    Raises:
        OSError: the disk failed, on whichever ranks.
        DamagedError: files are damaged, as some rank reads them.
        SnapshotError: something else failed on a rank; a `LostRankError` if one is gone.
        torch.OutOfMemoryError: on the ranks where it was raised.
    """
    own: Exception | None = None
    said: dict[str, Any] = {}
    try:
        said["did"] = do()
    except Exception as error:  # whatever it is: the others must not wait for this rank
        own = error
        said["failed"] = _facts(error)
    try:
        told = exchange(said, CPU, group)
    except (RuntimeError, TypeError) as error:
        raise lost(doing, error) from error
    failures = {rank: one["failed"] for rank, one in enumerate(told) if "failed" in one}
    if failures:
        _raise(doing, failures, own, len(told))
    return [one["did"] for one in told]


def translated(doing: str, error: CheckpointException, num_ranks: int) -> NoReturn:
    """Raise DCP's error as one of ours.

    Raises:
        OSError: the disk failed, on whichever ranks.
        SnapshotError: something else failed on a rank.
    """
    causes = {rank: cause for rank, (cause, _) in sorted(error.failures.items())}
    for cause in causes.values():
        if isinstance(cause, KeyboardInterrupt | SystemExit):
            raise cause
    facts = {rank: _facts(cause) for rank, cause in causes.items()}
    _raise(doing, facts, error, num_ranks)


def lost(doing: str, error: Exception) -> LostRankError:
    """The error for a rank that died or does not answer."""
    return LostRankError(f"{doing}: a rank is gone or does not answer ({error!s:.200})")


def _facts(error: BaseException) -> list[Any]:
    """`[errno or None, message, whether files are damaged]`."""
    if isinstance(error, OSError):
        said = f"{error.strerror or error}: {error.filename or ''}".strip(": ")
        return [error.errno or 5, said, False]
    if isinstance(error, SnapshotError):
        return [None, str(error), isinstance(error, DamagedError)]
    return [None, f"{type(error).__name__}: {error!s:.300}", False]


def _raise(
    doing: str, failures: dict[int, list[Any]], own: BaseException | None, num_ranks: int
) -> NoReturn:
    if isinstance(own, torch.OutOfMemoryError):
        raise own  # no fault of the snapshot's
    by_reason: dict[tuple[Any, ...], list[int]] = {}
    for rank, facts in failures.items():
        by_reason.setdefault(tuple(facts), []).append(rank)
    (number, reason, damaged), ranks = min(
        by_reason.items(), key=lambda one: (one[0][0] is not None, one[1])
    )
    where = (
        "" if num_ranks == 1 else f" on rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}"
    )
    text = f"{doing}{where}: {reason}"
    if number is not None:
        raise OSError(number, text) from own
    raise (DamagedError if damaged else SnapshotError)(text) from own
