"""What a person asks of a run's data: commands left in its directory, checked before use.

A journal has one writer. Where the run is going on, a command is left as a file

    RUN/requests/<id>.json

with one line of JSON that ends in its checksum, as in `decisions.jsonl`. The run takes it in
between two steps, journals what it did under the request's id, and removes the file; after a
crash in between the id in the journal tells that it was done. Anything else that lies there is
refused with its reason and taken away, or left and passed over where it cannot be.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from foreshock.core.errors import JournalError, StreamError
from foreshock.core.incident import IncidentBook
from foreshock.core.reading import from_json_text, from_json_whole
from foreshock.core.records import decode_line, encode_line
from foreshock.data.entry import Key, keys_from_json
from foreshock.data.ledger import Ledger
from foreshock.data.minimized import DROPPED, MINIMIZED, Dropped, Minimized, entries_of, fields_in
from foreshock.data.positions import PositionOrder
from foreshock.data.reflow import MAX_WATCH_STEPS
from foreshock.data.returns import Told, reflowed, released, signed
from foreshock.durable import Disk, write_file

FOLDER: Final = "requests"
MAX_BYTES: Final = 1 << 20
"""Bytes of one request. Our choice: some 30,000 samples by name, and no flood."""

MAX_FINDING_BYTES: Final = 1 << 24
"""Bytes of a finding of `minimize`, and of what is read at once. Our choice: half a million
samples by name, more than a policy sets aside in an incident."""

MAX_AT_ONCE: Final = 64
"""Requests taken in between two steps. Our choice: the rest waits for the next step."""

RELEASE: Final = "release"
REFLOW: Final = "reflow"
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_INCIDENT: Final = re.compile(r"incident/(\d{1,9})", re.ASCII)
_FIELDS: Final = frozenset({"entry_id", "ids", "every_samples", "watch_steps"})
_DAMAGE: Final = (JournalError, StreamError, KeyError, TypeError, ValueError)


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A command on an entry of the ledger, or on all of them.

    Args:
        request: sixteen hexadecimal digits that name it.
        command: "release" or "reflow".
        entry_id: the entry, or the first part of several ids ("rule/repetition"), or
            "incident/3" for what an incident has set aside; None is all of them.
        ids: only these samples of it; None is all.
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
        if self.ids is not None and self.command == RELEASE and self.entry_id is None:
            raise StreamError("samples are released only from an entry that is named as well")

    def must_wait(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Never: a person has asked for it."""
        del records
        return False

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
            fields = fields_in(data, _FIELDS)
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

    def records(
        self,
        ledger: Ledger,
        order: Any,
        position: int,
        journal: Sequence[Mapping[str, Any]] = (),
    ) -> Told:
        """The records (kind, fields) that carry it out; journal each, then take it in.

        Args:
            ledger: what it is about.
            order: the run's order.
            position: the watermark of the run.
            journal: the run's records, which say what an incident has set aside.

        Raises:
            StreamError: there is no such entry or sample, nothing is held there any more, or
                the run's data cannot do it.
        """
        chosen = matching(ledger, self.entry_id, journal)
        if self.command == RELEASE:
            return self._released(ledger, chosen, position)
        if isinstance(order, PositionOrder):
            raise StreamError(
                "this run's data came from a loader of its own, which cannot give out again what "
                "it has passed; only what lies ahead can be released. A foreshock.Stream can"
            )
        wanted = None if self.ids is None else set(self.ids)
        if wanted is not None:
            _refuse_strange(ledger, chosen, wanted)
        told = reflowed(
            ledger,
            chosen,
            position,
            every_samples=self.every_samples,
            watch_steps=self.watch_steps,
            ids=wanted,
        )
        if not told:
            raise StreamError("nothing of it is left to be brought back")
        return signed(told, self.request)

    def _released(self, ledger: Ledger, chosen: list[str], position: int) -> Told:
        told: Told = []
        if self.ids is not None and len(chosen) > 1:
            raise StreamError(
                f"samples are named, but {self.entry_id!r} means {len(chosen)} entries"
            )
        wanted = None if self.ids is None else set(self.ids)
        if wanted is not None:
            _refuse_strange(ledger, chosen, wanted)
        for entry_id in chosen:
            held = ledger.held_by(entry_id)
            if wanted is not None:
                held = [key for key in held if key in wanted]
            if held:
                told.append(released(entry_id, None if wanted is None else held, position))
        if not told:
            raise StreamError("nothing of it is held any more")
        return signed(told, self.request)


AnyRequest = Request | Minimized | Dropped


def decode(data: bytes) -> AnyRequest:
    """A request of any kind.

    Raises:
        StreamError: the data is none.
    """
    kinds = {MINIMIZED: Minimized, DROPPED: Dropped}
    try:
        command = decode_line(data).get("command")
    except JournalError as error:
        raise StreamError(f"not a request ({error!s:.200})") from error
    kind = kinds.get(command, Request) if isinstance(command, str) else Request
    if kind is not Minimized and len(data) > MAX_BYTES:
        raise StreamError(f"it is longer than {MAX_BYTES} bytes")
    found = kind.decode(data)
    if not _ID.fullmatch(found.request):
        raise StreamError(f"request={found.request!r:.40}: must be 16 hexadecimal digits")
    return found


def _refuse_strange(ledger: Ledger, chosen: Sequence[str], wanted: set[Key]) -> None:
    known = {key for entry_id in chosen for key in ledger.samples(entry_id)}
    if strange := sorted(wanted - known):
        which = f"entry {chosen[0]!r}" if len(chosen) == 1 else f"none of {len(chosen)} entries"
        does = "does not name" if len(chosen) == 1 else "names"
        raise StreamError(f"{which} {does} {strange[:3]}")


def matching(
    ledger: Ledger, entry_id: str | None, journal: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """The entries that a name means: the one itself, or all that begin with it and a slash.

    "incident/3" means those that the plans of incident 3 have made, as the journal tells.

    Raises:
        StreamError: there is none.
    """
    known = [entry.entry_id for entry in ledger.all_entries]
    if entry_id is None:
        chosen = known
    elif entry_id in ledger:
        chosen = [entry_id]
    elif named := _INCIDENT.fullmatch(entry_id):
        told = [one for one in IncidentBook(journal).incidents if one.id == int(named[1])]
        chosen = [name for one in told for name in entries_of(one) if name in ledger]
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

    def leave(self, request: AnyRequest) -> Path:
        """Leave a request for the run to take in; it appears whole, or not at all.

        Raises:
            OSError: the disk failed.
            StreamError: it is too long, or the folder is a link.
        """
        data = request.encode()
        most = MAX_FINDING_BYTES if isinstance(request, Minimized) else MAX_BYTES
        if len(data) > most:
            raise StreamError(
                f"the request has {len(data)} bytes, over {most}: name fewer samples at once"
            )
        if self._folder.is_symlink():
            raise StreamError(f"{self._folder} is a link: put a directory in its place")
        self._disk.make_dir(self._folder)
        path = self._folder / f"{request.request}.json"
        write_file(self._disk, path, [data])
        return path

    def pending(self) -> tuple[list[AnyRequest], list[tuple[str, str]]]:
        """The requests that wait, and what is refused: (name of the file, reason).

        Call it between two steps; where nothing lies it is one look at the directory. A
        request that the journal knows is removed. Never raises for what lies there.
        """
        found: list[AnyRequest] = []
        refused: list[tuple[str, str]] = []
        read = 0
        try:
            if self._folder.is_symlink() or not self._disk.exists(self._folder):
                return [], []
            names = self._disk.list(self._folder)
        except OSError:
            return [], []
        for name in [one for one in names if one not in self._passed_over][:MAX_AT_ONCE]:
            if name.startswith(".") and name.endswith(".tmp"):
                continue  # one that is being written
            if read > MAX_FINDING_BYTES:
                break  # the rest waits for the next step
            try:
                request, size = self._read(name)
                read += size
            except (OSError, StreamError) as error:
                refused.append((name, f"{error!s:.200}"))
                self._remove(name)
                continue
            if request.request in self._done:
                self._remove(name)
            else:
                found.append(request)
        return found, refused

    def look(self) -> list[AnyRequest]:
        """The requests that lie there, and nothing is done to any."""
        found: list[AnyRequest] = []
        with suppress(OSError):
            if self._folder.is_symlink() or not self._disk.exists(self._folder):
                return []
            for name in self._disk.list(self._folder)[:MAX_AT_ONCE]:
                with suppress(OSError, StreamError):
                    found.append(self._read(name)[0])
        return found

    def finish(self, request: AnyRequest) -> None:
        """Remove a request that was journalled, or refused; it is not pending again."""
        self._done.add(request.request)
        self._remove(f"{request.request}.json")

    def _read(self, name: str) -> tuple[AnyRequest, int]:
        path = self._folder / name
        if path.is_symlink() or not path.is_file():
            raise StreamError("it is no plain file")
        size = self._disk.size(path)
        if size > MAX_FINDING_BYTES:
            raise StreamError(f"it is longer than {MAX_FINDING_BYTES} bytes")
        request = decode(self._disk.read(path))
        if name != f"{request.request}.json":
            raise StreamError(f"it is called {name!r:.60}, and is request {request.request}")
        return request, size

    def _remove(self, name: str) -> None:
        self._passed_over.add(name)  # if it cannot be removed, it is not looked at again
        with suppress(OSError):
            self._disk.remove(self._folder / name)


def ids_done(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The ids of the requests that a journal has carried out or refused."""
    return {str(one["request"]) for one in records if "request" in one}
