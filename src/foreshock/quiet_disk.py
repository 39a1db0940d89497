"""The disk of a rank that does not write: what it is told to write goes nowhere."""

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, final

from foreshock.durable import Chunk, Disk, Lock


@final
class QuietDisk:
    """A `Disk` that never writes.

    Args:
        seen: what is read; None for a disk without files, on which a journal in memory lies.
    """

    def __init__(self, seen: Disk | None = None) -> None:
        self._seen = seen

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        pass

    def append(self, path: Path, data: bytes) -> None:
        pass

    def truncate(self, path: Path, size: int) -> None:
        pass

    def sync(self, path: Path) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass

    def replace(self, src: Path, dst: Path) -> None:
        pass

    def remove(self, path: Path) -> None:
        pass

    def remove_tree(self, path: Path) -> None:
        pass

    def make_dir(self, path: Path) -> None:
        pass

    def read(self, path: Path) -> bytes:
        return self._files(path).read(path)

    def open(self, path: Path) -> BinaryIO:
        return self._files(path).open(path)

    def size(self, path: Path) -> int:
        return self._files(path).size(path)

    def exists(self, path: Path) -> bool:
        return self._seen is not None and self._seen.exists(path)

    def free_bytes(self, path: Path) -> int:
        return self._files(path).free_bytes(path)

    def lock(self, path: Path) -> Lock:
        return _NoLock()

    def list(self, path: Path) -> list[str]:
        return [] if self._seen is None else self._seen.list(path)

    def _files(self, path: Path) -> Disk:
        if self._seen is None:
            raise FileNotFoundError(f"{path}: this rank has no files")
        return self._seen


@final
class _NoLock:
    def close(self) -> None:
        pass
