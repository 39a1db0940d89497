"""What a person asks of a run's data: commands left in its directory, checked before use.

A journal has one writer. Where the run is going on, a command is left as a file

    RUN/requests/<id>.json

with one line of JSON that ends in its checksum, as in `decisions.jsonl`. The run takes it in
between two steps, journals what it did under the request's id, and removes the file; after a
crash in between the id in the journal tells that it was done. Anything else that lies there is
refused with its reason and taken away, or left and passed over where it cannot be.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from foreshock.core.errors import JournalError, StreamError
from foreshock.core.reading import from_json_text, from_json_whole
from foreshock.core.records import decode_line, encode_line
from foreshock.data.entry import Key, keys_from_json
from foreshock.data.ledger import Ledger
from foreshock.data.positions import PositionOrder
from foreshock.data.reflow import MAX_WATCH_STEPS, Reflow
from foreshock.durable import Disk, write_file

FOLDER: Final = "requests"
MAX_BYTES: Final = 1 << 20
"""Bytes of one request. Our choice: some 30,000 samples by name, and no flood."""

MAX_AT_ONCE: Final = 64
"""Requests taken in between two steps. Our choice: the rest waits for the next step."""

RELEASE: Final = "release"
REFLOW: Final = "reflow"
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_FIELDS: Final = frozenset(
    {"request", "command", "entry_id", "ids", "every_samples", "watch_steps"}
)
_DAMAGE: Final = (JournalError, StreamError, KeyError, TypeError, ValueError)

Fields = dict[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A command on an entry of the ledger, or on all of them.

    Args:
        request: sixteen hexadecimal digits that name it.
        command: "release" or "reflow".
        entry_id: the entry, or the first part of several ids ("rule/repetition"); None is all
            of them.
        ids: only these samples of it; None is all. For "release" only.
        every_samples: for "reflow": samples from one that comes back to the next.
        watch_steps: for "reflow": steps that each is watched for.

    Raises:
        StreamError: a value outside these limits.
    """

    request: str
    command: str
    entry_id: str | None
    ids: tuple[Key, ...] | None = None
    every_samples: int = 0
    watch_steps: int = 0

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.request):
            raise StreamError(f"request={self.request!r:.40}: must be 16 hexadecimal digits")
        if self.command not in (RELEASE, REFLOW):
            raise StreamError(f"command={self.command!r:.40}: must be 'release' or 'reflow'")
        if self.command == REFLOW and (
            self.every_samples < 1 or not 1 <= self.watch_steps <= MAX_WATCH_STEPS
        ):
            raise StreamError(
                f"reflow every {self.every_samples} samples, watched for {self.watch_steps} "
                f"steps: needs at least 1 sample, and 1 to {MAX_WATCH_STEPS} steps"
            )
        if self.ids is not None and (self.command == REFLOW or self.entry_id is None):
            raise StreamError("samples are named only to release them from an entry")

    def encode(self) -> bytes:
        """One line of strict JSON with its checksum."""
        ids = None if self.ids is None else [list(key) for key in self.ids]
        return encode_line({**vars(self), "ids": ids})

    @classmethod
    def decode(cls, data: bytes) -> "Request":
        """Undo `encode`.

        Raises:
            StreamError: the data is anything else.
        """
        try:
            fields = decode_line(data)
            if set(fields) != _FIELDS:
                raise ValueError(f"its fields are {sorted(fields)!r:.200}")
            entry_id = fields["entry_id"]
            return cls(
                request=from_json_text(fields["request"]),
                command=from_json_text(fields["command"]),
                entry_id=None if entry_id is None else from_json_text(entry_id),
                ids=None if fields["ids"] is None else keys_from_json(fields["ids"]),
                every_samples=from_json_whole(fields["every_samples"]),
                watch_steps=from_json_whole(fields["watch_steps"]),
            )
        except _DAMAGE as error:
            raise StreamError(f"not a request ({error!s:.200})") from error

    def records(self, ledger: Ledger, order: Any, position: int) -> list[tuple[str, Fields]]:
        """The records (kind, fields) that carry it out; journal each, then take it in.

        Args:
            ledger: what it is about.
            order: the run's order.
            position: the watermark of the run.

        Raises:
            StreamError: there is no such entry or sample, nothing is held there any more, or
                the run's data cannot do it.
        """
        chosen = matching(ledger, self.entry_id)
        if self.ids is not None and len(chosen) > 1:
            raise StreamError(
                f"samples are named, but {self.entry_id!r} means {len(chosen)} entries"
            )
        if self.command == RELEASE:
            return self._released(ledger, chosen, position)
        if isinstance(order, PositionOrder):
            raise StreamError(
                "this run's data came from a loader of its own, which cannot give out again what "
                "it has passed; only what lies ahead can be released. A foreshock.Stream can"
            )
        return self._reflowed(ledger, chosen, position)

    def _released(
        self, ledger: Ledger, chosen: list[str], position: int
    ) -> list[tuple[str, Fields]]:
        told: list[tuple[str, Fields]] = []
        for entry_id in chosen:
            held = ledger.held_by(entry_id)
            if self.ids is not None:
                if strange := sorted(set(self.ids) - set(ledger.samples(entry_id))):
                    raise StreamError(f"entry {entry_id!r} does not name {strange[:3]}")
                held = [key for key in held if key in set(self.ids)]
            if held:
                ids = None if self.ids is None else [list(key) for key in held]
                fields = {"entry_id": entry_id, "ids": ids, "position": position}
                told.append(("released", fields))
        if not told:
            raise StreamError("nothing of it is held any more")
        return self._signed(told)

    def _reflowed(
        self, ledger: Ledger, chosen: list[str], position: int
    ) -> list[tuple[str, Fields]]:
        told: list[tuple[str, Fields]] = []
        start = position + 1  # what stands before the watermark itself may have been given out
        for entry_id in chosen:
            num = len(ledger.to_bring_back(entry_id, start))
            if num:
                reflow = Reflow(
                    entry_id=entry_id,
                    start=start,
                    every_samples=self.every_samples,
                    watch_steps=self.watch_steps,
                )
                told.append(("reflow_started", reflow.to_json()))
                start += num * self.every_samples
        if not told:
            raise StreamError("nothing of it is left to be brought back")
        return self._signed(told)

    def _signed(self, told: list[tuple[str, Fields]]) -> list[tuple[str, Fields]]:
        """The last record says that it is done: after a crash before it, all is done again.

        What was done already is then not held any more, or is given its slots anew.
        """
        *first, (kind, fields) = told
        return [*first, (kind, {**fields, "request": self.request})]


def matching(ledger: Ledger, entry_id: str | None) -> list[str]:
    """The entries that a name means: the one itself, or all that begin with it and a slash.

    Raises:
        StreamError: there is none.
    """
    known = [entry.entry_id for entry in ledger.all_entries]
    if entry_id is None:
        chosen = known
    elif entry_id in ledger:
        chosen = [entry_id]
    else:
        chosen = [one for one in known if one.startswith(f"{entry_id}/")]
    if not chosen:
        what = "nothing is set aside" if not known else f"there is no entry {entry_id!r:.80}"
        raise StreamError(f"{what}; the run has {known[:9]}")
    return chosen


@final
class Requests:
    """The requests that lie in a run's directory.

    Args:
        disk: where files are.
        run_dir: the run.
        done: ids that the journal knows.
    """

    def __init__(self, disk: Disk, run_dir: Path, done: Iterable[str] = ()) -> None:
        self._disk = disk
        self._folder = run_dir / FOLDER
        self._done = set(done)
        self._passed_over: set[str] = set()

    def leave(self, request: Request) -> Path:
        """Leave a request for the run to take in; it appears whole, or not at all.

        Raises:
            OSError: the disk failed.
            StreamError: it is too long, or the folder is a link.
        """
        data = request.encode()
        if len(data) > MAX_BYTES:
            raise StreamError(
                f"the request has {len(data)} bytes, over {MAX_BYTES}: name fewer samples at once"
            )
        if self._folder.is_symlink():
            raise StreamError(f"{self._folder} is a link: put a directory in its place")
        self._disk.make_dir(self._folder)
        path = self._folder / f"{request.request}.json"
        write_file(self._disk, path, [data])
        return path

    def pending(self) -> tuple[list[Request], list[tuple[str, str]]]:
        """The requests that wait, and what is refused: (name of the file, reason).

        Call it between two steps; where nothing lies it is one look at the directory. A
        request that the journal knows is removed. Never raises for what lies there.
        """
        found: list[Request] = []
        refused: list[tuple[str, str]] = []
        try:
            if self._folder.is_symlink() or not self._disk.exists(self._folder):
                return [], []
            names = self._disk.list(self._folder)
        except OSError:
            return [], []
        for name in [one for one in names if one not in self._passed_over][:MAX_AT_ONCE]:
            if name.startswith(".") and name.endswith(".tmp"):
                continue  # one that is being written
            try:
                request = self._read(name)
            except (OSError, StreamError) as error:
                refused.append((name, f"{error!s:.200}"))
                self._remove(name)
                continue
            if request.request in self._done:
                self._remove(name)
            else:
                found.append(request)
        return found, refused

    def finish(self, request: Request) -> None:
        """Remove a request that was journalled, or refused; it is not pending again."""
        self._done.add(request.request)
        self._remove(f"{request.request}.json")

    def _read(self, name: str) -> Request:
        path = self._folder / name
        if path.is_symlink() or not path.is_file():
            raise StreamError("it is no plain file")
        if self._disk.size(path) > MAX_BYTES:
            raise StreamError(f"it is longer than {MAX_BYTES} bytes")
        request = Request.decode(self._disk.read(path))
        if name != f"{request.request}.json":
            raise StreamError(f"it is called {name!r:.60}, and is request {request.request}")
        return request

    def _remove(self, name: str) -> None:
        self._passed_over.add(name)  # if it cannot be removed, it is not looked at again
        with suppress(OSError):
            self._disk.remove(self._folder / name)


def ids_done(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The ids of the requests that a journal has carried out or refused."""
    return {str(one["request"]) for one in records if "request" in one}


def watch_steps_for(every_batches: int) -> int:
    """Steps that a sample is watched for: until the next comes, but at least 16, at most 100.

    No source: our choice, because with 16 or more steps between two samples an alarm can then
    be put down to one of them, and a spike shows within a few steps of its cause.
    """
    return max(16, min(MAX_WATCH_STEPS, every_batches))
