"""Damage to the files of snapshots, as disks, file systems and people do it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

_MOST_BLOCK_BYTES = 4096


def damage(folder: Path, newest: str, others: list[str], rng: np.random.Generator) -> str:
    """Damage the newest snapshot of a folder; return what was done, in words.

    Args:
        folder: the snapshots.
        newest: name of the one to damage.
        others: names of the others, whose files may end up in its place.
        rng: draws what is done, and where.
    """
    before = _content(folder / newest)
    while True:
        kind = str(rng.choice(list(KINDS)))
        said = KINDS[kind](folder, newest, others, rng)
        if _content(folder / newest) != before:
            return f"{kind}: {said}"


def _content(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()} if path.exists() else {}


def _file(folder: Path, name: str, rng: np.random.Generator) -> Path:
    return Path(str(rng.choice(sorted(str(path) for path in (folder / name).iterdir()))))


def _place(size: int, rng: np.random.Generator) -> int:
    """A place in a file; half of them near its beginning, where its structure is."""
    near = min(size, 512)
    return int(rng.integers(near if rng.random() < 0.5 else size))


def _flips(folder: Path, name: str, _: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    data = bytearray(path.read_bytes())
    number = int(rng.choice([1, 1, 1, 2, 8]))
    for _bit in range(number):
        data[_place(len(data), rng)] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    return f"{number} bits of {path.name}"


def _truncate(folder: Path, name: str, _: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    data = path.read_bytes()
    size = int(rng.choice([0, len(data) - 1, int(rng.integers(len(data)))]))
    path.write_bytes(data[:size])
    return f"{path.name} to {size} of {len(data)} bytes"


def _extend(folder: Path, name: str, _: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    more = int(rng.integers(1, 5000))
    path.write_bytes(path.read_bytes() + rng.bytes(more))
    return f"{path.name} by {more} bytes"


def _zero(folder: Path, name: str, _: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    data = bytearray(path.read_bytes())
    at, size = _place(len(data), rng), int(rng.integers(1, _MOST_BLOCK_BYTES))
    data[at : at + size] = bytes(len(data[at : at + size]))
    path.write_bytes(data)
    return f"{size} bytes of {path.name} at {at}"


def _exchange(folder: Path, name: str, _: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    data = bytearray(path.read_bytes())
    size = max(1, min(_MOST_BLOCK_BYTES, len(data) // 3))
    first, second = sorted(int(at) for at in rng.integers(len(data) - size + 1, size=2))
    if second - first < size:
        return "nothing"
    one, other = data[first : first + size], data[second : second + size]
    data[first : first + size], data[second : second + size] = other, one
    path.write_bytes(data)
    return f"{size} bytes of {path.name} at {first} and at {second}"


def _stale(folder: Path, name: str, others: list[str], rng: np.random.Generator) -> str:
    """A block as an earlier snapshot has it: a write that never reached the disk."""
    path = _file(folder, name, rng)
    source = folder / str(rng.choice(others)) / path.name
    data, old = bytearray(path.read_bytes()), source.read_bytes()
    at = _place(min(len(data), len(old)), rng) // 512 * 512
    size = min(_MOST_BLOCK_BYTES, len(old) - at, len(data) - at)
    data[at : at + size] = old[at : at + size]
    path.write_bytes(data)
    return f"{size} bytes of {path.name} at {at} of {source.parent.name}"


def _swap_files(folder: Path, name: str, others: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    candidates = [folder / other / path.name for other in others]
    candidates += [one for one in (folder / name).iterdir() if one.suffix == path.suffix]
    other = Path(str(rng.choice(sorted(str(one) for one in candidates))))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"{path.name} and {other.parent.name}/{other.name}"


def _swap_folders(folder: Path, name: str, others: list[str], rng: np.random.Generator) -> str:
    other = str(rng.choice(others))
    aside = folder / ".aside"
    (folder / name).rename(aside)
    (folder / other).rename(folder / name)
    aside.rename(folder / other)
    return f"{name} and {other}"


def _replace_folder(folder: Path, name: str, others: list[str], rng: np.random.Generator) -> str:
    other = str(rng.choice(others))
    shutil.rmtree(folder / name)
    shutil.copytree(folder / other, folder / name)
    return f"{name} by {other}"


def _remove(folder: Path, name: str, _: list[str], rng: np.random.Generator) -> str:
    path = _file(folder, name, rng)
    path.unlink()
    return path.name


KINDS: dict[str, Callable[[Path, str, list[str], np.random.Generator], str]] = {
    "flip bits": _flips,
    "truncate": _truncate,
    "extend": _extend,
    "zero a block": _zero,
    "exchange blocks": _exchange,
    "stale block": _stale,
    "swap files": _swap_files,
    "swap folders": _swap_folders,
    "replace folder": _replace_folder,
    "remove": _remove,
}
