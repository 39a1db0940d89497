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
import signal
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("passes.c")
_SWITCH = "FORESHOCK_FUSED"
_COMPILERS = ("cc", "gcc", "clang")
_ALWAYS = (  # of some compilers fast mathematics are the default, which know no NaN
    *("-O3", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
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


class _NotCompiledError(Exception):
    """The compiler ran and made nothing; with what it said."""


class Library(NamedTuple):
    """What came of looking for the passes.

    Attributes:
        functions: the loaded library, or None.
        may_thread: whether it shares torch's threads; else it runs in one.
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
    try:
        compiler = _compiler()
    except ValueError as error:
        return Library(None, False, f"CC is no command: {error}")
    if compiler is None:
        return Library(None, False, "no C compiler was found")
    try:
        return _made(compiler)
    except (OSError, subprocess.SubprocessError, ValueError, _NotCompiledError) as error:
        return Library(None, False, f"{compiler[0]} could not compile them: {error}")


def _compiler() -> list[str] | None:
    for name in (os.environ.get("CC", ""), *_COMPILERS):
        words = shlex.split(name)
        found = shutil.which(words[0]) if words else None
        if found is not None:
            return [found, *words[1:]]
    return None


def _made(compiler: list[str]) -> Library:
    failure: Exception = OSError("nothing was tried")
    before = _thread_pools()
    for flags in _TRIED:
        threads = "-fopenmp" in flags
        if threads and not _can_be_shared(before):
            continue
        command = [*compiler, *_ALWAYS, *flags, str(_SOURCE)]
        try:
            functions = _found(command)
        except (OSError, _NotCompiledError) as error:
            failure = error
            continue
        # One that brings a runtime of its own is left unused: some end the process when they
        # find another at their first call.
        if not threads or _thread_pools() == before:
            return Library(functions, threads, f"compiled by {Path(compiler[0]).name}")
    raise failure


def _found(command: list[str]) -> ctypes.CDLL:
    """What the command compiles, kept where that is possible."""
    folder = _cache()
    if folder is not None:
        path = folder / f"passes-{_key(command)}.so"
        with suppress(OSError):
            if _is_ours(path, stat.S_ISREG):
                return _loaded(path)
        with suppress(OSError):  # a full disk, or one that nothing may be run from
            _compile(command, path)
            return _loaded(path)
    with tempfile.TemporaryDirectory(prefix="foreshock-", ignore_cleanup_errors=True) as place:
        path = Path(place) / "passes.so"
        _compile(command, path)
        return _loaded(path)


def _compile(command: list[str], path: Path) -> None:
    """Write the library whole or not at all; several processes may do so at once."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    try:
        _run([*command, "-o", name, "-lm"])
        with Path(name).open("rb") as written:
            os.fsync(written.fileno())
        Path(name).chmod(0o700)
        Path(name).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _run(command: list[str]) -> None:
    """Run the user's own compiler on a file of this package; on a timeout end all it started."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = process.wait(_TIMEOUT_SECS)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if status:
            said.seek(0)
            lines = said.read(1 << 16).decode(errors="replace").strip().splitlines()
            lines = [line for line in lines if "error" in line] or lines
            raise _NotCompiledError(lines[0] if lines else f"exit status {status}")


def _loaded(path: Path) -> ctypes.CDLL:
    if not _is_whole(path):
        raise OSError("it is cut short")
    found = ctypes.CDLL(str(path))
    for name, arguments in _FUNCTIONS.items():
        function = getattr(found, name, None)
        if function is None:
            raise OSError(f"it holds no {name}")
        function.argtypes = arguments
        function.restype = _INT
    return found


def _is_whole(path: Path) -> bool:
    """Whether nothing is missing at the end of a library, which would end the process.

    Where it is of 64-bit ELF: linkers put the table of sections last.
    """
    found = path.read_bytes()
    if found[:5] != b"\x7fELF\x02" or len(found) < 64:
        return True
    (begin,) = struct.unpack_from("=Q", found, 40)
    size, num = struct.unpack_from("=HH", found, 58)
    return begin + size * num <= len(found)


def _key(command: list[str]) -> str:
    """Names what the library is made of: a home directory may be shared by unlike machines."""
    processor = platform.processor()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        told = re.findall(r"^(?:flags|Features|isa|model name).*$", text, re.M)
        processor += "".join(told[:2])
    made_of = [_SOURCE.read_text(encoding="utf-8"), *command, processor]
    made_of += [platform.machine(), platform.system(), *platform.libc_ver()]
    text = "\0".join(made_of)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


def _cache() -> Path | None:
    """A folder that only this user can write to, or put another in the place of; None if none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
        if not root.is_absolute():
            return None
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = root.resolve() / "foreshock"
        folder.mkdir(exist_ok=True, mode=0o700)
        kept = _is_ours(folder, stat.S_ISDIR) and all(map(_is_kept, folder.parents))
    except (OSError, RuntimeError, ValueError):
        return None
    return folder if kept and os.access(folder, os.W_OK) else None


def _is_ours(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of that kind, no link, this user's, and for nobody else to write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_kind(found.st_mode) and found.st_uid == os.getuid() and not others


def _is_kept(folder: Path) -> bool:
    """Whether nobody but this user and root can move what is in a folder."""
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in (0, os.getuid()) and (not others or bool(found.st_mode & stat.S_ISVTX))


def _thread_pools() -> set[str]:
    """The OpenMP runtimes in this process."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    name = r"\S*/lib(?:g|i)?omp5?(?:-\w+)?\.so[.\d]*(?= \(deleted\)$|$)"
    return set(re.findall(name, text, re.M))


def _can_be_shared(pools: set[str]) -> bool:
    """Whether there is one runtime, torch's, under a name that a compiler may link to.

    Wheels rename those they bring, and two in a process stand in each other's way.
    """
    return len(pools) == 1 and all(re.search(r"/lib(?:gomp|omp|iomp5)\.so", one) for one in pools)
