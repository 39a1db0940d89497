"""Where logs are read from: plain files, gzipped ones, and directories. Only read, bounded."""

import codecs
import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import cast

from foreshock.core.errors import LogError
from foreshock.core.reader import Sample

BLOCK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 20
MAX_DOCUMENT_BYTES = 256 << 20
MAX_UNPACKED_BYTES = 8 << 30
MAX_RATIO = 200
"""Bytes that a compressed byte may unpack to on average: text reaches 20, a bomb 1,000."""
MAX_CHILDREN = 10_000
_MAX_DEPTH = 6
_TOOLS = ("node_modules", "__pycache__", "site-packages")
_HEAD_BYTES, _PEEK_BYTES, _THOROUGH_BYTES = 256 << 10, 64 << 10, 4 << 20
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_GZIP = b"\x1f\x8b"
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


class FileSource:
    """A log on disk. See `foreshock.core.reader.Source` for what its methods promise.

    Args:
        path: a plain file or a directory; pipes and devices are refused.
        note: told what was cut.
        progress: told how many bytes of the file have been read since the last call.

    Raises:
        LogError: it does not exist, is neither file nor directory, or may not be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        note: Callable[[str], None] = lambda sentence: None,
        progress: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self.path = path
        self._note = note
        self._progress = progress
        try:
            found = path.stat()
        except OSError as error:
            raise LogError(f"{shown(path)} cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL in the name
            raise LogError(f"{str(path)!r} is no path: {error}") from error
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            raise LogError(f"{shown(path)} is neither a file nor a directory")
        self.is_dir = stat.S_ISDIR(found.st_mode)
        self.size = 0 if self.is_dir else found.st_size
        """Bytes on disk; of a directory, 0."""
        self.changed_ns = found.st_mtime_ns

    @property
    def name(self) -> str:
        return shown(Path(self.path.name))

    def blocks(self) -> Iterator[bytes]:
        with self._open() as raw:
            packed = raw.peek(2)[:2] == _GZIP
            # One piece at a time, so that what stands before a damaged place is not lost.
            read = gzip.GzipFile(fileobj=raw).read1 if packed else raw.read
            unpacked, seen = 0, 0
            while True:
                try:
                    block = read(BLOCK_BYTES)
                except (OSError, EOFError, zlib.error) as error:
                    self._note(f"reading stopped: {error}")
                    return
                if not block:
                    return
                self._progress(raw.tell() - seen)
                seen = raw.tell()
                unpacked += len(block)
                if packed and unpacked > max(MAX_RATIO * seen, 4 * BLOCK_BYTES):
                    self._note(f"it unpacks to more than {MAX_RATIO} times its size: cut there")
                    return
                if packed and unpacked > MAX_UNPACKED_BYTES:
                    self._note(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB: cut there")
                    return
                yield block

    def lines(self) -> Iterator[tuple[int, str]]:
        for number, text in self.texts():
            yield from enumerate(text[:-1].split("\n"), number)

    def texts(self) -> Iterator[tuple[int, str]]:
        number = 1
        inside = False  # whether the last piece ended within a line, at a carriage return
        for text in self._texts():
            ends = text.endswith("\n")
            body = text if ends else text + "\n"
            if "\x1b" in body:
                body = _ANSI.sub("", body)
            if inside or "\r" in body:
                for place, line in enumerate(body[:-1].split("\n"), number):
                    if "\r" in line or (inside and place == number):
                        yield from ((place, f"{part}\n") for part in line.split("\r") if part)
                    else:
                        yield place, f"{line}\n"
            else:
                yield number, body
            number += body.count("\n") if ends else body.count("\n") - 1
            inside = not ends

    def document(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        for block in self.blocks():
            size += len(block)
            if size > MAX_DOCUMENT_BYTES:
                raise LogError(f"{shown(self.path)} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
            parts.append(block)
        return b"".join(parts)

    def children(self) -> Sequence[str]:
        found: list[str] = []
        pending = [("", 0)]
        num_folders = 0
        while pending:
            below, depth = pending.pop()
            num_folders += 1
            for entry in entries_of(self.path / below, self._note):
                if is_folder(entry):
                    if depth < _MAX_DEPTH:
                        pending.append((f"{below}{entry.name}/", depth + 1))
                elif is_file(entry):
                    found.append(below + entry.name)
            if len(found) >= MAX_CHILDREN or num_folders >= MAX_CHILDREN:
                self._note(f"only the first {MAX_CHILDREN} files were looked at")
                break
        return sorted(found[:MAX_CHILDREN])

    def child(self, name: str) -> "FileSource":
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise LogError(f"{name!r} leads out of {shown(self.path)}")
        return FileSource(self.path / name, note=self._note, progress=self._progress)

    def local_path(self) -> str:
        with self._open() as raw:
            if raw.peek(2)[:2] == _GZIP:
                raise LogError(f"{shown(self.path)} is gzipped: unpack it first")
        return str(self.path)

    def sample(self, *, thorough: bool = False) -> Sample:
        """What readers recognise a format by.

        Args:
            thorough: more than head, middle and end, for logs in which records are few and
                far between.
        """
        if self.is_dir:
            return Sample(name=self.name, is_dir=True, children=tuple(self.children()))
        num_bytes, num_peeks = (_THOROUGH_BYTES, 32) if thorough else (_HEAD_BYTES, 2)
        head = b""
        quiet = FileSource(self.path)
        for block in quiet.blocks():
            head += block
            if len(head) >= num_bytes:
                break
        head = head[:num_bytes]
        encoding = encoding_of(head)
        parts = [head]
        if self.size > 2 * num_bytes and not self._is_packed():
            with self._open() as raw:
                for number in range(1, num_peeks + 1):
                    place = min(self.size * number // num_peeks, self.size - _PEEK_BYTES)
                    raw.seek(place - place % 4)
                    parts.append(raw.read(_PEEK_BYTES))
        text = "\n".join(part.decode(encoding, "replace") for part in parts)
        text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        return Sample(name=self.name, head=head[:_HEAD_BYTES], text=text)

    def _is_packed(self) -> bool:
        with self._open() as raw:
            return raw.peek(2)[:2] == _GZIP

    def _open(self) -> BufferedReader:
        if self.is_dir:
            raise LogError(f"{shown(self.path)} is a directory, not a file")
        try:
            fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise LogError(f"{shown(self.path)} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise LogError(f"{shown(self.path)} is not a plain file")
        return cast(BufferedReader, os.fdopen(fd, "rb", buffering=BLOCK_BYTES))

    def _texts(self) -> Iterator[str]:
        """The file as text, CRLF as LF, in pieces that end where a line does or, in a line
        without end, where a carriage return stands; what is longer is cut."""
        decoder = None
        rest = ""
        cut = False
        for block in self.blocks():
            if decoder is None:
                decoder = codecs.getincrementaldecoder(encoding_of(block))("replace")
            text = rest + decoder.decode(block)
            end = text.rfind("\n") + 1
            end = end or text.rfind("\r") + 1
            if not end and len(text) > MAX_LINE_CHARS:
                if not cut:
                    self._note(f"lines are longer than {MAX_LINE_CHARS} characters: cut")
                cut = True
                rest = text[:MAX_LINE_CHARS]
                continue
            rest = text[end:]
            if end:
                yield text[:end].replace("\r\n", "\n")
        if decoder is not None:
            rest += decoder.decode(b"", final=True)
            if rest:
                yield rest.replace("\r\n", "\n")


def entries_of(folder: Path, note: Callable[[str], None]) -> list["os.DirEntry[str]"]:
    """What a folder holds, sorted; without what is hidden or belongs to a tool."""
    try:
        with os.scandir(folder) as entries:
            seen = sorted(islice(entries, 10 * MAX_CHILDREN), key=lambda entry: entry.name)
    except OSError as error:
        note(f"{shown(folder)} cannot be listed: {error.strerror}")
        return []
    return [one for one in seen if not one.name.startswith(".") and one.name not in _TOOLS]


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a folder of its own: links may lead in circles."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def is_file(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a plain file, or a link to one."""
    try:
        return entry.is_file()
    except OSError:
        return False


def shown(path: Path) -> str:
    """A path on one line, as it can be printed.

    >>> shown(Path("a\\nb"))
    'a?b'
    """
    text = os.fsencode(path).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def encoding_of(head: bytes) -> str:
    """The encoding of a text, from its first bytes: a byte order mark, or zeros where
    letters of two bytes have them; else UTF-8, of which every ASCII letter is right in any
    encoding that a log is written in.

    >>> encoding_of(b"step 1"), encoding_of("step 1".encode("utf-16")), encoding_of(b"s\\0t\\0")
    ('utf-8', 'utf-16', 'utf-16-le')
    """
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    sample = head[:4096]
    half = len(sample) // 2
    if half and sample[1::2].count(0) > 0.7 * half and sample[0::2].count(0) < 0.2 * half:
        return "utf-16-le"
    if half and sample[0::2].count(0) > 0.7 * half and sample[1::2].count(0) < 0.2 * half:
        return "utf-16-be"
    return "utf-8"
