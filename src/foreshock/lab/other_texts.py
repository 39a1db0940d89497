"""Texts of other kinds for probes: another script, mathematics, and installed translations."""

import hashlib
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

Document = Callable[[], bytes]

_NUM_PAGES = 1500
_LINES_A_PAGE = 60
_MAX_CATALOGUE_BYTES = 8_000_000
_GETTEXT_MAGIC = 0x950412DE

_LATIN = "abcdefghijklmnopqrstuvwxyz"
_CYRILLIC = "абцдефгхийклмнопярстувшжыз"
_TO_CYRILLIC = str.maketrans(_LATIN + _LATIN.upper(), _CYRILLIC + _CYRILLIC.upper())


def in_cyrillic(text: str) -> str:
    """The same text in Cyrillic letters, one for one.

    >>> in_cyrillic("The loss")
    'Тхе лосс'
    """
    return text.translate(_TO_CYRILLIC)


def mathematics(root: Path) -> dict[str, Document]:
    """Pages of worked mathematics, written out from their number alone; `root` is not read."""
    return {f"mathematics/{page:04d}": partial(_page, page) for page in range(_NUM_PAGES)}


def catalogues(root: Path) -> dict[str, Document]:
    """The translations in every gettext catalogue under `root`, by its POSIX path."""
    return {
        path.relative_to(root).as_posix(): partial(_translations, path)
        for path in root.glob("*/LC_MESSAGES/*.mo")
        if path.is_file()
    }


def _page(page: int) -> bytes:
    seed = hashlib.blake2b(f"mathematics:{page}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed))
    lines = (_LINES[int(rng.integers(len(_LINES)))](rng) for _ in range(_LINES_A_PAGE))
    return "\n".join(lines).encode()


def _sum(rng: np.random.Generator) -> str:
    a, b = (int(n) for n in rng.integers(0, 100, size=2))
    return f"{a}+{b}={a + b}"


def _difference(rng: np.random.Generator) -> str:
    a, b = (int(n) for n in rng.integers(0, 100, size=2))
    return f"{a}-{b}={a - b}"


def _product(rng: np.random.Generator) -> str:
    a, b = (int(n) for n in rng.integers(0, 13, size=2))
    return f"{a}*{b}={a * b}"


def _equation(rng: np.random.Generator) -> str:
    a, x, b = int(rng.integers(2, 10)), int(rng.integers(0, 13)), int(rng.integers(0, 20))
    return f"{a}x + {b} = {a * x + b}, so {a}x = {a * x} and x = {x}."


def _square(rng: np.random.Generator) -> str:
    a = int(rng.integers(1, 20))
    return f"(x + {a})^2 = x^2 + {2 * a}x + {a * a}"


_LINES = (_sum, _difference, _product, _equation, _square)


def _translations(path: Path) -> bytes:
    """The translated messages of a catalogue; nothing if it is none, or not UTF-8."""
    try:
        if path.stat().st_size > _MAX_CATALOGUE_BYTES:
            return b""
        return "\n".join(_messages(path.read_bytes())).encode()
    except (OSError, struct.error, UnicodeDecodeError):
        return b""


def _messages(data: bytes) -> Iterator[str]:
    """Every translation but the header.

    Reference: the GNU gettext manual, "The Format of GNU MO Files".
    """
    order = "<" if data[:4] == struct.pack("<I", _GETTEXT_MAGIC) else ">"
    magic, _, count, _, table = struct.unpack_from(f"{order}5I", data)
    if magic != _GETTEXT_MAGIC or table + 8 * count > len(data):
        return
    for place in range(count):
        size, start = struct.unpack_from(f"{order}2I", data, table + 8 * place)
        text = data[start : start + size].decode()
        if place and text:
            yield text.replace("\0", "\n")
