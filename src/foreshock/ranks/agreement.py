"""All ranks as one: what each says is heard by every other, or the run stops with a name."""

import json
import os
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from foreshock.core import errors
from foreshock.core.errors import ConfigError, ForeshockError
from foreshock.ranks.exchange import gather, is_running, num_ranks, own_index
from foreshock.ranks.watchdog import Absent, Watchdog

TIMEOUT_SECS: Final = 600.0
"""PyTorch's own for NCCL. It must be longer than a rank may take over a snapshot."""
_NAMING_SECS: Final = 15.0
_HEAD: Final = struct.Struct("<IHI")  # meeting, length of its name, length of what is said
_FIRST_BYTES: Final = 1024
_COLLECTIVE_FAILED: Final = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|process ?group|socket",
    re.IGNORECASE,
)


class RankError(ForeshockError):
    """Ranks differ, or one is gone: the run stops on all of them, and goes on from disk.

    Attributes:
        ranks: those that are to blame; empty where that cannot be told.
        kind: "ranks_differ" or "ranks_lost", as in the journal.
    """

    exit_code = 4

    def __init__(self, text: str, *, ranks: Sequence[int], kind: str) -> None:
        super().__init__(text)
        self.ranks = tuple(ranks)
        self.kind = kind


class Ranks:
    """The ranks of a run, which meet for every decision; on one rank nothing is done.

    They meet in a gloo group of their own, on the host: no device waits, a failure names the
    rank, and the collectives of the training are never in between. Every meeting is the same
    collective with the meeting's name in it. So ranks that have gone different ways do not
    wait for each other for ever, but find that they are at different places.

    Collective: every rank builds one at the same place.

    Args:
        timeout_secs: how long a rank waits at a meeting for the others.

    Raises:
        ConfigError: the time-out is not above 0.
    """

    def __init__(self, *, timeout_secs: float = TIMEOUT_SECS) -> None:
        if not timeout_secs > 0:
            raise ConfigError(f"timeout_secs is {timeout_secs}; it must be above 0")
        self.size = num_ranks(None)
        self.rank = own_index(None)
        self._timeout_secs = timeout_secs
        self.failure: RankError | None = None
        """Why the ranks cannot go on: raised again by every meeting, at once, so that nobody
        who takes it for a fault of something else makes all wait once more."""
        self._number = 0
        self._group: Any = None
        self._watchdog: Watchdog | None = None
        if self.size > 1:
            self._group = self.new_group()
            known = dist.distributed_c10d._get_default_store()
            # A store may outlive a restart: what the ranks before have left there is not ours.
            token = torch.tensor(list(os.urandom(8)), dtype=torch.uint8)
            dist.broadcast(token, src=0, group=self._group)
            store = dist.PrefixStore(f"foreshock/{token.numpy().tobytes().hex()}", known)
            self._watchdog = Watchdog(store, self.rank, self.size)
            self._watchdog.start()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def new_group(self) -> Any:
        """A gloo group of all ranks, for collectives beside the meetings; None for one rank.

        In a thread of its own, or for tensors, they must not come in between the meetings.
        """
        timeout = timedelta(seconds=self._timeout_secs)
        return dist.new_group(backend="gloo", timeout=timeout) if self.size > 1 else None

    def close(self) -> None:
        """Give no more signs of life."""
        if self._watchdog is not None:
            self._watchdog.close()

    # ---- meetings -------------------------------------------------------------------

    def exchange(self, what: str, said: bytes) -> list[bytes]:
        """What each rank says, in the order of ranks; collective.

        Two small collectives at most, on the host. If only one rank says much, it is
        broadcast.

        Args:
            what: names the meeting; the same on every rank.
            said: this rank's part, of any length.

        Raises:
            RankError: a rank is at another meeting, or did not come.
        """
        if self.size == 1:
            return [said]
        assert self._watchdog is not None
        if self.failure is not None:
            raise self.failure
        self._number += 1
        name = what.encode()[:200]
        message = _HEAD.pack(self._number, len(name), len(said)) + name + said
        begun = time.monotonic()
        try:
            self._watchdog.arrive(self._number)
            rows = self._gather(message)
        except RuntimeError as error:
            overdue = time.monotonic() - begun >= 0.9 * self._timeout_secs
            raise self._lost(what, error, self._number, overdue=overdue) from error
        return self._same_meeting(what, rows)

    def agree(self, what: str, facts: Mapping[str, str]) -> None:
        """Stop every rank unless all say the same; collective.

        Raises:
            RankError: they differ; it names the ranks outside the majority and the facts.
        """
        if self.size == 1:
            return
        rows = [json.loads(row) for row in self.exchange(what, json.dumps(facts).encode())]
        differing = sorted({key for row in rows for key in row if row[key] != rows[0].get(key)})
        if not differing:
            return
        odd = _odd([json.dumps(row, sort_keys=True) for row in rows])
        raise self._failed(
            f"{what}: {_said_of(odd, self.size)} in {', '.join(differing)}. The run stops on all "
            "ranks, since one of them would go another way; start it again with resume, and all "
            "go on from what is on disk",
            ranks=odd,
            kind="ranks_differ",
        )

    def from_first(self, what: str, make: Callable[[], Any]) -> Any:
        """What the first rank makes, on every rank; what it raises, likewise. Collective.

        Args:
            what: names the meeting.
            make: called on the first rank only; gives what JSON can hold.
        """
        if self.size == 1:
            return make()
        said: Any = None
        failure: Exception | None = None
        if self.is_first:
            try:
                said = {"value": make()}
            except (ForeshockError, OSError) as error:
                failure = error
                number = error.errno if isinstance(error, OSError) else None
                said = {"error": type(error).__name__, "text": str(error), "errno": number}
        heard = json.loads(self.exchange(what, json.dumps(said).encode())[0])
        if failure is not None:
            raise failure
        if "error" in heard:
            raise _again(heard)
        return heard["value"]

    def all_or_none(
        self, what: str, act: Callable[[], Any], kind: type[ForeshockError] = ConfigError
    ) -> Any:
        """Act on every rank; where one fails, all fail. Collective.

        Raises:
            ForeshockError: this rank's own, or one of `kind` that names the others'.
        """
        result: Any = None
        failure: Exception | None = None
        try:
            result = act()
        except (ForeshockError, OSError) as error:
            failure = error
        said = "" if failure is None else f"{type(failure).__name__}: {failure}"[:500]
        heard = [row.decode() for row in self.exchange(what, said.encode())]
        if failure is not None:
            raise failure
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(heard) if text]
        if failed:
            raise kind(f"{what} failed on other ranks: {'; '.join(failed)[:1000]}")
        return result

    # ---- failures -------------------------------------------------------------------

    def explain(self, what: str, error: BaseException) -> RankError | None:
        """What a failure of a collective outside of meetings means; None if it is none.

        Waits a little for the others to fail as well; who does not is named.
        """
        if self.size == 1 or isinstance(error, RankError):
            return None
        lost = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError)
            and not isinstance(error, torch.OutOfMemoryError)
            and _COLLECTIVE_FAILED.search(str(error)) is not None
        )
        return self._lost(what, error, None) if lost else None

    def lost(self, what: str, error: BaseException, ranks: Sequence[int] = ()) -> RankError:
        """The error for a collective outside of meetings that failed because of other ranks.

        Args:
            what: what failed, for the message.
            error: how.
            ranks: those that are to blame, if that is known.
        """
        if not ranks:
            return self._lost(what, error, None)
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        return self._failed(
            f"{what}: {named} did not come within {self._timeout_secs:g} s. The run stops on all "
            f"ranks; start it again with resume, and it goes on from disk ({error!s:.200})",
            ranks=ranks,
            kind="ranks_lost",
        )

    def differ(self, what: str, error: BaseException) -> RankError:
        """The error for ranks that hold different values of what they should have alike."""
        return self._failed(
            f"{what}: {error}. The run stops on all ranks; start it again with resume, and all "
            "go on from what is on disk",
            ranks=(),
            kind="ranks_differ",
        )

    def give_up(self, error: BaseException) -> None:
        """Tell the others that this rank stops, and why, so that they can name it."""
        if self._watchdog is not None:
            try:
                text = f"{type(error).__name__}: {error}"
                self._watchdog.stopped(text, own=not isinstance(error, RankError))
            except RuntimeError:
                return  # the store is gone, and with it those who could hear

    def _lost(
        self, what: str, error: BaseException, number: int | None, *, overdue: bool = False
    ) -> RankError:
        assert self._watchdog is not None
        absent: list[Absent] = []
        try:
            self._watchdog.stopped(what, own=False)
            absent = self._watchdog.absent(number, _NAMING_SECS, overdue=overdue)
        except RuntimeError:
            pass
        if absent:
            named = "; ".join(f"rank {one.rank} ({one.why})" for one in absent)
            text = f"{what}: {named} did not come"
        else:
            text = f"{what}: a rank was lost, and nothing tells which"
        return self._failed(
            f"{text}. Rank {self.rank} waited for at most {self._timeout_secs:g} s and stops; "
            f"start all ranks again with resume, and the run goes on from disk ({error!s:.200})",
            ranks=[one.rank for one in absent],
            kind="ranks_lost",
        )

    def _failed(self, text: str, *, ranks: Sequence[int], kind: str) -> RankError:
        self.failure = RankError(text, ranks=ranks, kind=kind)
        return self.failure

    def _gather(self, message: bytes) -> list[bytes]:
        begin = message[:_FIRST_BYTES]
        sent = torch.zeros(_FIRST_BYTES + 8, dtype=torch.uint8)
        sent[:8] = torch.tensor(list(struct.pack("<Q", len(message))), dtype=torch.uint8)
        sent[8 : 8 + len(begin)] = _bytes(begin)
        rows = [row.numpy().tobytes() for row in gather(sent, self._group)]
        sizes = [struct.unpack("<Q", row[:8])[0] for row in rows]
        found = [row[8 : 8 + size] for row, size in zip(rows, sizes, strict=True)]
        long = [rank for rank, size in enumerate(sizes) if size > _FIRST_BYTES]
        if not long:
            return found
        rest = torch.zeros(max(sizes) - _FIRST_BYTES, dtype=torch.uint8)
        mine = message[_FIRST_BYTES:]
        rest[: len(mine)] = _bytes(mine)
        if len(long) == 1:
            dist.broadcast(rest, src=long[0], group=self._group)
            found[long[0]] += rest.numpy().tobytes()
            return found
        for rank, row in enumerate(gather(rest, self._group)):
            if sizes[rank] > _FIRST_BYTES:
                found[rank] += row[: sizes[rank] - _FIRST_BYTES].numpy().tobytes()
        return found

    def _same_meeting(self, what: str, rows: list[bytes]) -> list[bytes]:
        places: list[str] = []
        said: list[bytes] = []
        for row in rows:
            number, length, size = _HEAD.unpack(row[: _HEAD.size])
            name = row[_HEAD.size : _HEAD.size + length]
            said.append(row[_HEAD.size + length :][:size])
            places.append(f"{name.decode(errors='replace')} (meeting {number})")
        if len(set(places)) == 1:
            return said
        odd = _odd(places)
        where = "; ".join(f"rank {rank} is at {places[rank]}" for rank in odd[:8])
        usual = next((one for rank, one in enumerate(places) if rank not in odd), "")
        others = f", the others at {usual}" if usual else ""
        raise self._failed(
            f"{what}: {_said_of(odd, self.size)}: {where}{others}. The run stops on all ranks; "
            "start it again with resume, and all go on from what is on disk",
            ranks=odd,
            kind="ranks_differ",
        )


def _odd(said: Sequence[str]) -> list[int]:
    """The ranks outside the majority; all of them where there is none."""
    most = max(set(said), key=said.count)
    if 2 * said.count(most) <= len(said):
        return list(range(len(said)))
    return [rank for rank, one in enumerate(said) if one != most]


def _said_of(odd: Sequence[int], size: int) -> str:
    named = f"rank{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))}"
    if len(odd) < size:
        rest = size - len(odd)
        return f"{named} {'differs' if len(odd) == 1 else 'differ'} from the other {rest}"
    if size == 2:
        return f"{named} differ, and of two nobody can tell which is right"
    return f"{named} differ, without a majority"


def _again(heard: Mapping[str, Any]) -> Exception:
    """What the first rank raised, as far as it can be told."""
    if heard["errno"] is not None:
        return OSError(heard["errno"], f"on rank 0: {heard['text']}")
    kind = getattr(errors, heard["error"], ForeshockError)
    return kind(f"on rank 0: {heard['text']}")


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)


def alone() -> bool:
    """Whether this process is the only rank."""
    return not is_running() or num_ranks(None) == 1
