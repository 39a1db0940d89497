"""Where logs are read from: plain files, gzipped ones, and directories. Only read, bounded."""

import codecs
import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from foreshock.core.errors import LogError
from foreshock.core.reader import Sample

BLOCK_BYTES = 1 << 20
MAX_LINE_CHARS = 1 << 20
MAX_DOCUMENT_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 8 << 30
MAX_RATIO = 200
"""Bytes that a compressed byte may unpack to on average: text reaches 20, a bomb 1,000."""
MAX_CHILDREN = 10_000
_MAX_DEPTH = 6
_HEAD_BYTES, _PEEK_BYTES = 256 << 10, 64 << 10
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
            mode = path.stat().st_mode
        except OSError as error:
            raise LogError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL in the name
            raise LogError(f"{str(path)!r} is no path: {error}") from error
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise LogError(f"{path} is neither a file nor a directory")
        self.is_dir = stat.S_ISDIR(mode)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def size(self) -> int:
        """Bytes on disk; of a directory, 0."""
        return 0 if self.is_dir else self.path.stat().st_size

    def blocks(self) -> Iterator[bytes]:
        with self._open() as raw:
            packed = raw.peek(2)[:2] == _GZIP
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if packed else raw)
            unpacked, seen = 0, 0
            while True:
                try:
                    block = file.read(BLOCK_BYTES)
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
        number = 0
        for text in self._texts():
            body = text
            if "\x1b" in body:
                body = _ANSI.sub("", body)
            if "\r" in body:
                for line in body.split("\n"):
                    number += 1
                    if "\r" in line:
                        for part in line.split("\r"):
                            if part:
                                yield number, part
                    else:
                        yield number, line
            else:
                for line in body.split("\n"):
                    number += 1
                    yield number, line

    def document(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        for block in self.blocks():
            size += len(block)
            if size > MAX_DOCUMENT_BYTES:
                raise LogError(f"{self.path} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
            parts.append(block)
        return b"".join(parts)

    def children(self) -> Sequence[str]:
        found: list[str] = []
        pending = [(self.path, 0)]
        while pending:
            folder, depth = pending.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                self._note(f"{folder} cannot be listed: {error.strerror}")
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MAX_DEPTH:
                        pending.append((Path(entry.path), depth + 1))
                elif entry.is_file():
                    found.append(str(Path(entry.path).relative_to(self.path)))
                if len(found) >= MAX_CHILDREN:
                    self._note(f"only the first {MAX_CHILDREN} files were looked at")
                    return sorted(found)
        return sorted(found)

    def child(self, name: str) -> "FileSource":
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise LogError(f"{name!r} leads out of {self.path}")
        return FileSource(self.path / name, note=self._note, progress=self._progress)

    def local_path(self) -> str:
        with self._open() as raw:
            if raw.peek(2)[:2] == _GZIP:
                raise LogError(f"{self.path} is gzipped: unpack it first")
        return str(self.path)

    def sample(self) -> Sample:
        """What readers recognise a format by."""
        if self.is_dir:
            return Sample(name=self.name, is_dir=True, children=tuple(self.children()))
        head = b""
        quiet = FileSource(self.path)
        for block in quiet.blocks():
            head += block
            if len(head) >= _HEAD_BYTES:
                break
        head = head[:_HEAD_BYTES]
        encoding = encoding_of(head)
        parts = [head]
        if self.size > 2 * _HEAD_BYTES and not self._is_packed():
            with self._open() as raw:
                for place in (self.size // 2, self.size - _PEEK_BYTES):
                    raw.seek(place - place % 4)
                    parts.append(raw.read(_PEEK_BYTES))
        text = "\n".join(part.decode(encoding, "replace") for part in parts)
        text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        return Sample(name=self.name, head=head, text=text)

    def _is_packed(self) -> bool:
        with self._open() as raw:
            return raw.peek(2)[:2] == _GZIP

    def _open(self) -> BufferedReader:
        if self.is_dir:
            raise LogError(f"{self.path} is a directory, not a file")
        try:
            fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise LogError(f"{self.path} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise LogError(f"{self.path} is not a plain file")
        return cast(BufferedReader, os.fdopen(fd, "rb", buffering=BLOCK_BYTES))

    def _texts(self) -> Iterator[str]:
        """The file as text in pieces that end where a line does, CRLF as LF; a line without
        end is cut."""
        decoder = None
        rest = ""
        cut = False
        for block in self.blocks():
            if decoder is None:
                decoder = codecs.getincrementaldecoder(encoding_of(block))("replace")
            text = rest + decoder.decode(block)
            end = text.rfind("\n")
            if end < 0:
                end = text.rfind("\r")
                if end == len(text) - 1:
                    end = -1  # perhaps the first half of CRLF
            if end < 0:
                if len(text) > MAX_LINE_CHARS:
                    if not cut:
                        self._note(f"lines are longer than {MAX_LINE_CHARS} characters: cut")
                    cut = True
                    text = text[:MAX_LINE_CHARS]
                rest = text
                continue
            rest = text[end + 1 :]
            yield text[:end].replace("\r\n", "\n")
        if decoder is not None:
            rest += decoder.decode(b"", final=True)
            if rest:
                yield rest.replace("\r\n", "\n").removesuffix("\n").removesuffix("\r")


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
