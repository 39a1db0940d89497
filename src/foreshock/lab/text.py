"""Real text that is on every machine: the standard library's source, and its documentation.

Files are read and parsed, never imported. Which bytes come out depends on the Python version
(to the patch release), `limit_bytes`, `seed` and `held_out`; not on the order in which the file
system lists them.
"""

import ast
import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from foreshock.core.errors import ConfigError
from foreshock.lab.other_texts import catalogues, in_cyrillic, mathematics

Kind = Literal["code", "english", "cyrillic", "mathematics", "languages"]
Document = Callable[[], bytes]  # read when it is called: most documents never are

# Tests hold binary fixtures, encodings and pydoc_data long tables; the rest is not the library.
PRUNED = frozenset(
    {"test", "tests", "idle_test", "idlelib", "encodings", "pydoc_data"}
    | {"__pycache__", "site-packages", "dist-packages"}
)


@final
@dataclass(frozen=True, kw_only=True)
class TextSplit:
    """Training and held-out bytes; no document gives bytes to both."""

    train: bytes
    held_out: bytes


@final
class TextWindows(Dataset[Tensor]):
    """Map-style dataset of fixed windows of text: item i is int64 `[T + 1]`.

    The first T tokens are the input, the last T the targets. Windows share no bytes, so setting
    one aside sets aside exactly what it names; the tail that fills no window is left out. The
    windows a data fault returns, `[N, T + 1]` uint8, come back from their `tobytes()`.
    """

    def __init__(self, text: bytes, context: int) -> None:
        if context < 1:
            raise ConfigError(f"TextWindows got context={context}; it must be >= 1.")
        num_windows = len(text) // (context + 1)
        if num_windows == 0:
            raise ConfigError(
                f"TextWindows got {len(text)} bytes, less than one window of {context + 1} "
                "(context + 1). Give more text, or a shorter context."
            )
        flat = np.frombuffer(text, dtype=np.uint8, count=num_windows * (context + 1))
        self.windows = flat.reshape(num_windows, context + 1)  # [N, T + 1], read-only

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.windows[index].astype(np.int64))


def load_text(
    kind: Kind,
    *,
    limit_bytes: int,
    seed: int,
    held_out: float = 0.1,
    root: Path | None = None,
) -> TextSplit:
    """At most `limit_bytes` of `kind`, split by whole documents, in an order drawn from `seed`.

    `code` is the source of the standard library, one document a file (about 9 MB). `english` is
    its docstrings, one document a file, and the language reference that `help()` shows, one
    document a topic (about 2 MB). `cyrillic` is `english` letter by letter in Cyrillic: another
    script with bytes of its own, on every machine. `mathematics` is written out: sums, products,
    equations. `languages` are the translations that the system's programs come with, one document
    a catalogue, where there are any. The seed also draws which documents are held out: more
    bytes never move a document to the other side, and a file held out of `code` is held out of
    `english` too.

    Args:
        held_out: probability that a document is held out, and the share of `limit_bytes` that
            held-out text may fill.
        root: the folder to read; by default this Python's standard library, for `languages`
            the system's locale folder.

    Raises:
        ConfigError: an argument is not allowed, or there is no text, as in a Python whose
            standard library is a zip archive, or which comes without source or `pydoc_data`.

    Example:
        >>> split = load_text("code", limit_bytes=20_000, seed=0)
        >>> len(split.train), len(split.held_out)
        (18000, 2000)
    """
    if limit_bytes < 1:
        raise ConfigError(f"load_text got limit_bytes={limit_bytes}; it must be >= 1.")
    if not 0.0 <= held_out < 1.0:
        raise ConfigError(f"load_text got held_out={held_out}; it must be in [0, 1).")
    if kind not in READERS:
        raise ConfigError(f"load_text got kind={kind!r}; allowed are {', '.join(READERS)}.")
    if root is None:
        root = LOCALE if kind == "languages" else Path(sysconfig.get_path("stdlib"))
    documents = READERS[kind](root)

    limits = {"held_out": round(held_out * limit_bytes)}
    limits["train"] = limit_bytes - limits["held_out"]
    texts = {part: bytearray() for part in limits}
    for draw, name in sorted((_draw(seed, name), name) for name in documents):
        part = "held_out" if draw % 2**32 < held_out * 2**32 else "train"
        missing = limits[part] - len(texts[part])
        if missing > 0 and (document := documents[name]().strip()):
            texts[part] += (document + b"\n\n")[:missing]
    if any(limits[part] and not texts[part] for part in limits):
        raise ConfigError(
            f"load_text found {len(documents)} documents of kind {kind!r} in {root}: "
            f"{len(texts['train'])} bytes to train on, {len(texts['held_out'])} held out. It needs "
            "a standard library of plain .py files (not a zip archive), for `languages` gettext "
            "catalogues; give another `root`."
        )
    return TextSplit(train=bytes(texts["train"]), held_out=bytes(texts["held_out"]))


def _draw(seed: int, name: str) -> int:
    """128 bits that depend on `seed` and `name` alone: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest())


def _code(root: Path) -> dict[str, Document]:
    """Every source file under `root` that is part of the library, by its POSIX path."""
    found: dict[str, Document] = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in PRUNED]
        for path in (Path(folder, name) for name in files if name.endswith(".py")):
            found[path.relative_to(root).as_posix()] = partial(_source, path)
    return found


def _english(root: Path) -> dict[str, Document]:
    """The docstrings of every source file, and every topic of `pydoc_data`."""
    found: dict[str, Document] = {
        name: partial(_docstrings, read) for name, read in _code(root).items()
    }
    for topic, text in _topics(root / "pydoc_data" / "topics.py").items():
        found[f"pydoc_data/topics.py#{topic}"] = text.encode
    return found


def _source(path: Path) -> bytes:
    """The bytes of a UTF-8 file; nothing if it cannot be read or is not UTF-8."""
    try:
        source = path.read_bytes()
        source.decode()
    except (OSError, UnicodeDecodeError):
        return b""
    return source


def _docstrings(read: Document) -> bytes:
    """All docstrings of one source file, in order; nothing if it cannot be parsed."""
    try:
        tree = ast.parse(read())
    except (SyntaxError, ValueError):  # ValueError: the source holds a NUL byte
        return b""
    return "\n\n".join(_walk_docstrings(tree)).encode()


def _walk_docstrings(node: ast.AST) -> Iterator[str]:
    # ast.walk would also visit every expression, which takes as long as the parsing.
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for statement in getattr(node, "body", ()):
        if hasattr(statement, "body"):
            yield from _walk_docstrings(statement)


def _topics(path: Path) -> dict[str, str]:
    """The one literal that `pydoc_data/topics.py` assigns: topic to text."""
    try:
        tree = ast.parse(path.read_bytes())
        literals = [ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign)]
        return {str(topic): str(text) for topic, text in literals[0].items()}
    except (OSError, SyntaxError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(
            f"load_text could not read the help topics in {path} ({error!r}). The package that "
            "holds them may not be installed; use kind='code', or give another `root`."
        ) from error


def _cyrillic(root: Path) -> dict[str, Document]:
    """Every document of `english`, in Cyrillic letters."""
    return {name: partial(_transliterated, read) for name, read in _english(root).items()}


def _transliterated(read: Document) -> bytes:
    return in_cyrillic(read().decode(errors="replace")).encode()


LOCALE = Path("/usr/share/locale")
READERS: dict[str, Callable[[Path], dict[str, Document]]] = {
    "code": _code,
    "english": _english,
    "cyrillic": _cyrillic,
    "mathematics": mathematics,
    "languages": catalogues,
}
