"""Moments at which a process is killed from within: the n-th step, record, write, restore."""

import os
import signal
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.ranks.agreement import Ranks
from foreshock.snapshots.memory import MemoryRing
from foreshock.snapshots.parts import ModulePart, OptimizerPart, StatefulPart
from foreshock.update import Update

CHANGES = (
    *("write", "append", "truncate", "sync", "sync_dir"),
    *("replace", "remove", "remove_tree", "make_dir"),
)
PLACES: dict[str, tuple[tuple[type, tuple[str, ...]], ...]] = {
    "step": ((Update, ("commit_or_skip",)),),
    "record": ((Journal, ("write",)),),
    "snapshot": ((MemoryRing, ("put",)),),
    "restore": ((ModulePart, ("restore",)), (OptimizerPart, ("restore",))),
    "restore of the rest": ((StatefulPart, ("restore",)),),
    "meeting": ((Ranks, ("exchange",)),),
    "disk": ((RealDisk, CHANGES),),
}
HOW = ("before", "within", "after")


class Moment(NamedTuple):
    """The n-th time that a process comes to a place.

    Attributes:
        rank: of the process.
        place: one of `PLACES`, or "time": killed from outside.
        number: from 1; in hundredths of a run's length where the place is "time".
        how: before it is done, after it, or within: half of what was to be written is.
        whole: whether all ranks are killed with it, as when their machine dies.
    """

    rank: int
    place: str
    number: int
    how: str
    whole: bool


def count(counts: dict[str, int]) -> None:
    """From here on count in this process how often each place is come to."""
    for place in PLACES:
        counts[place] = 0

        def came(place: str = place) -> None:
            counts[place] += 1

        _wrap(place, lambda before, this, args, options, came=came: (came(), before())[1])


def arm(moment: Moment) -> None:
    """From here on this process is to be killed at a moment."""
    left = moment.number

    def at(before: Callable[[], Any], _this: Any, args: Any, _options: Any) -> Any:
        nonlocal left
        left -= 1
        if left != 0:
            return before()
        if moment.how == "within":
            _half(args)
        if moment.how == "after":
            before()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")

    _wrap(moment.place, at)


def _half(args: Any) -> None:
    """Write half of what a change of the disk was to write, if it was to write something."""
    match args:
        case (path, bytes(data)):
            with path.open("ab") as file:
                file.write(data[: len(data) // 2])
        case (path, chunks) if not isinstance(chunks, int | str) and hasattr(chunks, "__iter__"):
            whole = b"".join(bytes(chunk) for chunk in chunks)
            path.write_bytes(whole[: len(whole) // 2])
        case _:
            pass


def _wrap(place: str, around: Callable[[Callable[[], Any], Any, Any, Any], Any]) -> None:
    for kind, names in PLACES[place]:
        for name in names:
            setattr(kind, name, _wrapped(getattr(kind, name), around))


def _wrapped(method: Any, around: Callable[[Callable[[], Any], Any, Any, Any], Any]) -> Any:
    @wraps(method)
    def wrapped(this: Any, *args: Any, **options: Any) -> Any:
        return around(lambda: method(this, *args, **options), this, args, options)

    return wrapped
