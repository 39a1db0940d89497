"""The fused passes as a library: compiled once on the machine that uses them, or left out.

The wheel holds their source in C, `passes.c`, and nothing compiled. Where a C compiler is found
they are compiled when they are first needed (a second or two), for the processor at hand, into
the user's cache directory. Where there is none, or where `FORESHOCK_FUSED=0` is set, torch does
the same work, one pass for each reading.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("passes.c")
_SWITCH = "FORESHOCK_FUSED"
_COMPILERS = ("cc", "gcc", "clang")
_ALWAYS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_TRIED = (  # what not every compiler knows
    ("-march=native", "-fopenmp"),
    ("-march=native", "-fopenmp-simd"),
    ("-fopenmp-simd",),
    (),
)
_TIMEOUT_SECS = 60
_VOID, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_FUNCTIONS = {
    "foreshock_entries": [_VOID, _VOID, _VOID, _LONG, _INT, _VOID],
    "foreshock_entry": [_VOID, _LONG, _LONG, _INT, _VOID],
    "foreshock_gather": [_VOID, _VOID, _LONG, _INT, _VOID],
    "foreshock_updates": [
        *[_VOID] * 4, _LONG, _INT, _VOID, _VOID, ctypes.c_double, _VOID, _VOID
    ],
    "foreshock_logits": [_VOID, _LONG, _LONG, _LONG, _LONG, _INT, _VOID],
}  # fmt: skip


class Library(NamedTuple):
    """What came of looking for the passes.

    Attributes:
        functions: the loaded library, or None.
        may_thread: whether it shares torch's threads; a second pool of them would stand in
            the way of the first, so that it then runs in one.
        said: how it was made, or why it is not there.
    """

    functions: ctypes.CDLL | None
    may_thread: bool
    said: str


@functools.cache
def library() -> Library:
    """The passes, compiled if they are not yet; the same answer for the life of the process."""
    if os.environ.get(_SWITCH, "1") == "0":
        return Library(None, False, f"switched off by {_SWITCH}=0")
    if os.name != "posix":
        return Library(None, False, "not compiled on this system")
    compiler = _compiler()
    if compiler is None:
        return Library(None, False, "no C compiler was found")
    before = _thread_pools()
    try:
        functions, flags = _made(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        return Library(None, False, f"{compiler[0]} could not compile them: {error}")
    threads = "-fopenmp" in flags and _thread_pools() <= before
    return Library(functions, threads, f"compiled by {Path(compiler[0]).name}")


def _compiler() -> list[str] | None:
    for name in (os.environ.get("CC", ""), *_COMPILERS):
        words = shlex.split(name)
        found = shutil.which(words[0]) if words else None
        if found is not None:
            return [found, *words[1:]]
    return None


def _made(compiler: list[str]) -> tuple[ctypes.CDLL, tuple[str, ...]]:
    failure: Exception = OSError("nothing was tried")
    folder = _cache()
    for flags in _TRIED:
        with tempfile.TemporaryDirectory(prefix="foreshock-") as temporary:
            path = (folder or Path(temporary)) / f"passes-{_key(compiler, flags)}.so"
            try:
                if not _is_ours(path, stat.S_ISREG):
                    _compile([*compiler, *_ALWAYS, *flags], path)
                return _loaded(path), flags
            except (OSError, subprocess.SubprocessError) as error:
                failure = error
    raise failure


def _compile(command: list[str], path: Path) -> None:
    """Write the library whole or not at all; several processes may do so at once."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    try:
        # The command is the user's own compiler, the input a file of this package.
        done = subprocess.run(  # noqa: S603
            [*command, str(_SOURCE), "-o", name, "-lm"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECS,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise OSError(said[0])
        Path(name).chmod(0o700)
        Path(name).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _loaded(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    for name, arguments in _FUNCTIONS.items():
        function = getattr(found, name, None)
        if function is None:
            raise OSError(f"{path.name} holds no {name}")
        function.argtypes = arguments
        function.restype = _INT
    return found


def _key(compiler: list[str], flags: tuple[str, ...]) -> str:
    """Names what the library is made of: a home directory may be shared by unlike machines."""
    processor = platform.processor()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        processor = "".join(re.findall(r"^(?:flags|Features|model name).*$", text, re.M)[:2])
    made_of = [_SOURCE.read_text(encoding="utf-8"), *compiler, *flags, processor]
    made_of += [platform.machine(), platform.system(), *platform.libc_ver()]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:24]


def _cache() -> Path | None:
    """A folder that only this user can write to; None if there is no such."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
        folder = root / "foreshock"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):
        return None
    return folder if _is_ours(folder, stat.S_ISDIR) and os.access(folder, os.W_OK) else None


def _is_ours(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of that kind, no link, this user's, and for nobody else to write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_kind(found.st_mode) and found.st_uid == os.getuid() and not others


def _thread_pools() -> set[str]:
    """The OpenMP runtimes in this process."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(re.findall(r"\S*lib[gi]?omp[^/\s]*$", text, re.M))
