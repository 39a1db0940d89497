"""The one module through which everything durable is written.

`Disk` is the small set of primitives a file system offers; `RealDisk` is the real
one, and the tests put a simulated one in its place that loses and reorders whatever
was not synced. On top of any Disk stand three ways to write that survive `kill -9`
at any byte and a power loss:

- `write_file`: a file is the whole old one or the whole new one;
- `write_dir`: a directory of files appears whole or not at all;
- `AppendLog`: a file that only grows; what a failed append left behind is cut off.

A failing disk shows as OSError (ENOSPC when it is full), never as anything else.
Importing this module touches nothing.
"""

import errno
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol, final

from foreshock.files import FileLock, open_plain

Chunk = bytes | bytearray | memoryview
"""Bytes to write; a memoryview must be contiguous, and is written without a copy."""

_MAX_OPEN_LOGS: Final = 8  # three for a journal, and room for others


class Lock(Protocol):
    """An advisory lock that is held until `close`, or until the process ends."""

    def close(self) -> None:
        """Free the lock; a second call does nothing."""


class Disk(Protocol):
    """What Foreshock asks of a file system. Every method raises OSError when it fails.

    Only `sync` (content) and `sync_dir` (names: creation, `replace`, `remove`) make
    anything durable; until then a power loss may keep all, a part or nothing of it.
    """

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        """Create or empty the file, then write the chunks; a failure leaves a part."""

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end, visible to other readers at once; a failure may leave a part."""

    def truncate(self, path: Path, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self, path: Path) -> None:
        """Return when the file's content would survive a power loss.

        After a failure the content since the last sync is in doubt, and a later success
        does not vouch for it: the system may already have given it up.
        """

    def sync_dir(self, path: Path) -> None:
        """Return when the names in this directory would survive a power loss."""

    def replace(self, src: Path, dst: Path) -> None:
        """Rename within one directory, atomically; a file at `dst` is replaced."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it; a failure may leave a part."""

    def make_dir(self, path: Path) -> None:
        """Make the directory and its missing parents, durably; one that is there is fine."""

    def read(self, path: Path) -> bytes:
        """The whole content."""
        ...

    def open(self, path: Path) -> BinaryIO:
        """Open for reading parts of it; it stays readable if it is removed meanwhile."""
        ...

    def size(self, path: Path) -> int:
        """The length in bytes."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory has this name."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes that may still be written to the file system of this directory."""
        ...

    def lock(self, path: Path) -> Lock:
        """Lock this file, made if missing. RunDirError if another process holds it."""
        ...

    def list(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...


@final
class RealDisk:
    """The file system of this machine, through unbuffered system calls.

    The last eight files appended to stay open, so that an append is one system call.
    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}
        self._guard = threading.Lock()

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        fd = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(fd, "wb", buffering=0):
            for chunk in chunks:
                _write_all(fd, chunk)

    def append(self, path: Path, data: bytes) -> None:
        with self._guard:
            fd = self._open.get(path)
            if fd is None:
                fd = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                self._open[path] = fd
                if len(self._open) > _MAX_OPEN_LOGS:
                    os.close(self._open.pop(next(iter(self._open))))
            _write_all(fd, data)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def sync(self, path: Path) -> None:
        with self._guard:
            fd = self._open.get(path)
            if fd is not None:
                # The descriptor that wrote is sure to be told of a failed write-back.
                os.fsync(fd)
                return
        _sync_path(path)

    def sync_dir(self, path: Path) -> None:
        try:
            _sync_path(path)
        except OSError as error:
            # Some network file systems have no such call; renames there are synchronous.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise

    def replace(self, src: Path, dst: Path) -> None:
        self._forget(src)
        self._forget(dst)
        src.replace(dst)

    def remove(self, path: Path) -> None:
        self._forget(path)
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        self._forget(path)
        shutil.rmtree(path)

    def make_dir(self, path: Path) -> None:
        if not path.is_dir():
            self.make_dir(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_dir(path.parent)

    def read(self, path: Path) -> bytes:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            return file.read()

    def open(self, path: Path) -> BinaryIO:
        return os.fdopen(open_plain(path, os.O_RDONLY), "rb")

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        return path.exists()

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def lock(self, path: Path) -> Lock:
        return FileLock(path)

    def close(self) -> None:
        """Close the files kept open for appending; the disk stays usable."""
        with self._guard:
            for fd in self._open.values():
                os.close(fd)
            self._open.clear()

    def _forget(self, path: Path) -> None:
        """Close what is open at or below a name that is about to mean another file."""
        with self._guard:
            for name in [name for name in self._open if name.is_relative_to(path)]:
                os.close(self._open.pop(name))

    def list(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())


REAL_DISK: Final = RealDisk()
"""The disk of this machine: opens nothing until it is used."""


def _write_all(fd: int, data: Chunk) -> None:
    """Write every byte: the system may take fewer than asked (2 GiB a call, or a full disk)."""
    view = memoryview(data)
    rest = view.cast("B") if view.nbytes else b""
    while rest:
        rest = rest[os.write(fd, rest) :]


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(disk: Disk, path: Path, chunks: Iterable[Chunk]) -> None:
    """Make `path` hold exactly these bytes, durably: a crash leaves the whole old or new file.

    Raises OSError when the disk fails; the old file then stands and nothing is left
    beside it. (If the very last step fails, the sync of the directory, the new file
    stands, and only its durability is in doubt.)
    """
    temporary = _temporary(path)
    try:
        disk.write(temporary, chunks)
        disk.sync(temporary)
        disk.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(temporary)
        raise
    disk.sync_dir(path.parent)


def write_dir(disk: Disk, path: Path, files: Mapping[str, Iterable[Chunk]]) -> None:
    """Make a directory of files appear at `path`, durably, whole or not at all.

    The chunks of one file are asked for only when it is its turn. Raises FileExistsError
    if `path` is there already, ValueError for a name that is no plain file name, and OSError
    when the disk fails; nothing is left then (but see `write_file` on the last step).
    """
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a plain file name.")
    if disk.exists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary = _temporary(path)
    if disk.exists(temporary):
        disk.remove_tree(temporary)
    try:
        disk.make_dir(temporary)
        for name, chunks in files.items():
            disk.write(temporary / name, chunks)
            disk.sync(temporary / name)
        disk.sync_dir(temporary)
        disk.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            disk.remove_tree(temporary)
        raise
    disk.sync_dir(path.parent)


def clean_leftovers(disk: Disk, path: Path) -> list[str]:
    """Remove what a crash inside `write_file` or `write_dir` left in this directory.

    Returns the names removed. Call it only while nothing else writes here.
    """
    leftovers = [name for name in disk.list(path) if name[0] == "." and name.endswith(".tmp")]
    for name in leftovers:
        try:
            disk.remove_tree(path / name)
        except OSError:  # a file, or a link
            disk.remove(path / name)
    return leftovers


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


@final
class AppendLog:
    """A file that only grows, by records that the caller frames.

    The first append to a missing file creates it, durably and whole with its `header`.
    Opening an existing one changes nothing, but makes durable what is already there, so
    that no later failure can cut into it; a torn tail is cut by `repair`, once the caller
    has found where it begins.

    When an append or a sync fails, `size` says what still stands: a failed append takes
    back its own record; a failed sync takes back everything since the last one that
    succeeded, because the system may have lost any part of it.
    """

    def __init__(self, disk: Disk, path: Path, *, header: bytes = b"") -> None:
        self.path = path
        self._disk = disk
        self._header = header
        self._exists = disk.exists(path)
        self._torn = False
        if self._exists:
            disk.sync(path)
            disk.sync_dir(path.parent)  # its name may be as young as the failure that left it
        self.size = self.synced_size = disk.size(path) if self._exists else 0

    def append(self, data: bytes, *, durable: bool) -> None:
        """Add one record; with `durable`, return only when it would survive a power loss.

        Raises OSError when the disk fails; no torn record stays in the middle of the file,
        even if the failure also prevents cutting it off now: the next call does so first.
        """
        self._ready()
        self._write(data, durable=durable)

    def sync(self) -> None:
        """Make every record so far durable; with nothing new it does not touch the disk."""
        if self.size == self.synced_size:
            return
        self._ready()
        self._write(b"", durable=True)

    def repair(self, valid_size: int) -> None:
        """Cut a torn tail, durably: keep the first `valid_size` bytes."""
        if not 0 <= valid_size <= self.size:
            raise ValueError(f"cannot keep {valid_size} of the {self.size} bytes of {self.path}.")
        if valid_size < self.size:
            self._cut(valid_size)
            self._disk.sync(self.path)
            self.synced_size = valid_size

    def _ready(self) -> None:
        if not self._exists:
            write_file(self._disk, self.path, [self._header])
            self.size = self.synced_size = len(self._header)
            self._exists = True
        if self._torn:
            self._cut(self.size)

    def _write(self, data: bytes, *, durable: bool) -> None:
        standing = self.size
        try:
            if data:
                self._disk.append(self.path, data)
                self.size = standing + len(data)
            if durable:
                standing = self.synced_size
                self._disk.sync(self.path)
                self.synced_size = self.size
        except BaseException:
            with suppress(OSError):
                self._cut(standing)
            raise

    def _cut(self, size: int) -> None:
        self.size = size
        self._torn = True
        self._disk.truncate(self.path, size)
        self._torn = False
