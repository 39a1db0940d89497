"""A disk in memory that forgets, on a power loss, what a real one may forget.

It keeps, for each file, the synced content and every change since, and for each directory
the synced names and every creation, rename and removal since. `crash` picks, by a seed,
one of the states in which a real disk may come back: unsynced content is dropped, cut
short, or kept in some blocks and not in others (a block that is missing reads as zeros);
each unsynced name change is kept or lost on its own. A sync that failed has lost what it
was asked to keep: the next one succeeds without it, as on Linux.
"""

import errno
import io
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from foreshock.core.errors import RunDirError
from foreshock.durable import Chunk

_BLOCK_BYTES = 16  # small, so that short records already span several


class PowerLoss(BaseException):
    """The power went; no cleanup code runs, so this is no Exception."""


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class _Change:
    """Bytes written at an offset, or, where `data` is None, a cut at it."""

    offset: int
    data: bytes | None
    lost: bool = False

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            return
        content.extend(bytes(max(0, self.offset - len(content))))
        data = bytes(len(self.data)) if self.lost else self.data
        content[self.offset : self.offset + len(data)] = data


@dataclass
class _File:
    synced: bytes = b""
    content: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list[_Change])

    def change(self, change: _Change) -> None:
        change.apply(self.content)
        self.pending.append(change)

    def sync(self) -> None:
        self.synced = self._replayed(self.pending)
        self.pending = []

    def after_crash(self, rng: random.Random) -> bytes:
        kept = self.pending[: rng.randint(0, len(self.pending))]
        if kept and kept[-1].data is not None and rng.random() < 0.5:
            part = kept[-1].data[: rng.randint(0, len(kept[-1].data))]
            kept[-1] = _Change(kept[-1].offset, part)
        old, new = self.synced, self._replayed(kept)
        if rng.random() < 0.5:
            return new
        size = rng.choice([len(old), len(new), max(len(old), len(new))])
        versions = [version.ljust(size, b"\0") for version in (old, new)]
        blocks = range(0, size, _BLOCK_BYTES)
        mixed = [rng.choice(versions)[at : at + _BLOCK_BYTES] for at in blocks]
        return b"".join(mixed)[:size]

    def _replayed(self, changes: Iterable[_Change]) -> bytes:
        content = bytearray(self.synced)
        for change in changes:
            change.apply(content)
        return bytes(content)


@dataclass
class _Rename:
    """A name that begins to mean `node`; `old` is given up in the same instant."""

    old: str | None
    new: str | None
    node: "_File | _Dir"

    def apply(self, names: "dict[str, _File | _Dir]") -> None:
        if self.old is not None and names.get(self.old) is self.node:
            del names[self.old]
        if self.new is not None:
            names[self.new] = self.node


@dataclass
class _Dir:
    synced: "dict[str, _File | _Dir]" = field(default_factory=dict[str, "_File | _Dir"])
    names: "dict[str, _File | _Dir]" = field(default_factory=dict[str, "_File | _Dir"])
    pending: list[_Rename] = field(default_factory=list[_Rename])

    def change(self, rename: _Rename) -> None:
        rename.apply(self.names)
        self.pending.append(rename)

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.pending = []


class _HeldLock:
    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def close(self) -> None:
        self._held.discard(self._path)


class SimulatedDisk:
    """`num_changes` counts the calls that change something: the n-th can be made to fail."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_changes = 0
        self._root = _Dir()
        self._locked: set[Path] = set()
        self._fail_at: int | None = None
        self._error: BaseException = disk_full()
        self._rng = random.Random(0)

    # What a test does to the disk.

    def fail_after(self, num_changes: int, error: BaseException, *, seed: int = 0) -> None:
        """Let that many changes pass and the next one raise, a write after a part of it.

        An OSError is raised once. After a PowerLoss the disk answers nothing but PowerLoss.
        """
        self._fail_at = self.num_changes + num_changes
        self._error = error
        self._rng = random.Random(seed)

    @property
    def full(self) -> bool:
        return self.capacity_bytes is not None

    @full.setter
    def full(self, full: bool) -> None:
        self.capacity_bytes = _used_bytes(self._root) if full else None

    def kill_process(self) -> None:
        """`kill -9`: locks are freed, and every change so far is still there."""
        self._locked = set()
        self._fail_at = None

    def crash(self, seed: int) -> "SimulatedDisk":
        """The disk as it may come back after a power loss now."""
        rng = random.Random(seed)
        after = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        root = _after_crash(self._root, rng, {})
        assert isinstance(root, _Dir)
        after._root = root
        return after

    # The Disk protocol.

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        self._append(self._emptied(path), b"".join(bytes(chunk) for chunk in chunks))

    def append(self, path: Path, data: bytes) -> None:
        names = self._dir(path.parent)
        if path.name not in names.names:
            names.change(_Rename(None, path.name, _File()))
        self._append(self._file(path), data)

    def truncate(self, path: Path, size: int) -> None:
        file = self._file(path)
        self._change()
        file.change(_Change(size, None))

    def sync(self, path: Path) -> None:
        file = self._file(path)
        try:
            self._change()
        except BaseException:
            for change in file.pending:
                change.lost = True
            raise
        file.sync()

    def sync_dir(self, path: Path) -> None:
        self._change()
        self._dir(path).sync()

    def replace(self, src: Path, dst: Path) -> None:
        if src.parent != dst.parent:
            raise ValueError("rename within one directory only")
        parent = self._dir(src.parent)
        node, target = self._node(src), parent.names.get(dst.name)
        if isinstance(target, _Dir) and (isinstance(node, _File) or target.names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(dst))
        self._rename(parent, _Rename(src.name, dst.name, node))

    def remove(self, path: Path) -> None:
        self._rename(self._dir(path.parent), _Rename(path.name, None, self._file(path)))

    def remove_tree(self, path: Path) -> None:
        self._rename(self._dir(path.parent), _Rename(path.name, None, self._dir(path)))

    def make_dir(self, path: Path) -> None:
        if not self.exists(path):
            self.make_dir(path.parent)
            parent = self._dir(path.parent)
            self._rename(parent, _Rename(None, path.name, _Dir()))
            self.sync_dir(path.parent)
        elif isinstance(self._node(path), _File):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    def read(self, path: Path) -> bytes:
        return bytes(self._file(path).content)

    def open(self, path: Path) -> io.BytesIO:
        return io.BytesIO(self.read(path))

    def size(self, path: Path) -> int:
        return len(self._file(path).content)

    def exists(self, path: Path) -> bool:
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def free_bytes(self, path: Path) -> int:
        self._dir(path)
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - _used_bytes(self._root))

    def lock(self, path: Path) -> _HeldLock:
        if path in self._locked:
            raise RunDirError(f"{path.parent} is in use by another process.")
        names = self._dir(path.parent)
        if path.name not in names.names:
            names.change(_Rename(None, path.name, _File()))
        return _HeldLock(self._locked, path)

    def list(self, path: Path) -> list[str]:
        return sorted(self._dir(path).names)

    # How it is done.

    def _change(self) -> None:
        """Count a change, and fail if it is this one's turn."""
        if self._fail_at == self.num_changes and isinstance(self._error, PowerLoss):
            raise self._error
        self.num_changes += 1
        if self._fail_at == self.num_changes - 1:
            self._fail_at = None
            raise self._error

    def _rename(self, parent: _Dir, rename: _Rename) -> None:
        try:
            self._change()
        except PowerLoss:
            parent.change(rename)  # Done or not: the crash decides.
            raise
        parent.change(rename)

    def _append(self, file: _File, data: bytes) -> None:
        try:
            self._change()
        except BaseException:
            part = data[: self._rng.randint(0, len(data))]
            file.change(_Change(len(file.content), part))
            raise
        room = self.free_bytes(Path("/"))
        file.change(_Change(len(file.content), data[:room]))
        if room < len(data):
            raise disk_full()

    def _emptied(self, path: Path) -> _File:
        parent = self._dir(path.parent)
        if path.name in parent.names:
            self._file(path).change(_Change(0, None))
        else:
            parent.change(_Rename(None, path.name, _File()))
        return self._file(path)

    def _node(self, path: Path) -> "_File | _Dir":
        node: _File | _Dir = self._root
        for part in path.parts[1:]:
            if isinstance(node, _File):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if part not in node.names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.names[part]
        return node

    def _file(self, path: Path) -> _File:
        node = self._node(path)
        if isinstance(node, _Dir):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def _dir(self, path: Path) -> _Dir:
        node = self._node(path)
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node


def _files(node: _File | _Dir) -> Iterator[_File]:
    if isinstance(node, _File):
        yield node
    else:
        for child in node.names.values():
            yield from _files(child)


def _used_bytes(node: _File | _Dir) -> int:
    return sum(len(file.content) for file in _files(node))


def _after_crash(
    node: _File | _Dir, rng: random.Random, done: dict[int, _File | _Dir]
) -> _File | _Dir:
    """A copy with nothing pending; a file reached by two names stays one file."""
    if id(node) in done:
        return done[id(node)]
    if isinstance(node, _File):
        content = node.after_crash(rng)
        copy: _File | _Dir = _File(content, bytearray(content))
    else:
        names = dict(node.synced)
        odds = rng.choice([0.0, 0.5, 1.0])
        for rename in node.pending:
            if rng.random() < odds:
                rename.apply(names)
        children = {name: _after_crash(child, rng, done) for name, child in names.items()}
        copy = _Dir(children, dict(children))
    done[id(node)] = copy
    return copy
