"""The contract of a reader: recognise a log format, and give its records to a builder."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from foreshock.core.log_builder import LogBuilder


class Source(Protocol):
    """Where a log is read from: a file, plain or gzipped, or a directory. Only read.

    Everything is bounded: lines, documents and what a compressed file unpacks to. What goes
    beyond is cut, and the builder is told in a note.
    """

    @property
    def name(self) -> str:
        """The last part of the path."""
        ...

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        ...

    def lines(self) -> Iterator[tuple[int, str]]:
        """Each line with its 1-based number: decoded, without ANSI codes and line ends.

        A carriage return ends a line too (progress bars), without counting as one.
        """
        ...

    def texts(self) -> Iterator[tuple[int, str]]:
        """The lines that `lines` gives, in pieces of one or more that follow one another: the
        number of the first, and the text, each line with a newline behind it."""
        ...

    def document(self) -> bytes:
        """The whole file.

        Raises:
            LogError: it is larger than any document of this kind should be.
        """
        ...

    def blocks(self) -> Iterator[bytes]:
        """The file in blocks of about a megabyte."""
        ...

    def children(self) -> Sequence[str]:
        """Relative paths of the plain files below a directory, sorted; bounded."""
        ...

    def child(self, name: str) -> "Source":
        """One of the files that `children` named."""
        ...

    def local_path(self) -> str:
        """The path of the file, for libraries that open files themselves.

        Raises:
            LogError: the file is compressed.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a format is recognised by: a name and some of the bytes.

    Attributes:
        name: last part of the path.
        is_dir: whether it is a directory; then `children` names its files.
        head: the first 256 KiB.
        text: head, middle and end of the file, decoded, without ANSI codes, line ends and
            carriage returns as newlines. Empty for a directory.
    """

    name: str
    is_dir: bool = False
    head: bytes = b""
    text: str = ""
    children: tuple[str, ...] = ()

    @cached_property
    def lines(self) -> list[str]:
        """The lines of `text`."""
        return self.text.split("\n")


class Reader(ABC):
    """One log format.

    A reader is stateless: everything that it finds goes to the builder. It never unpickles
    or evaluates what it reads, and skips what it does not understand.

    Attributes:
        name: unique within the family; the file bears the same name.
        title: what people call the format.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def recognises(self, sample: Sample) -> float:
        """How surely this is the format, from 0 (not at all) to 1 (nothing else is like it).

        Formats with a signature of their own give 0.8 and more; one that accepts whatever
        has columns of numbers stays below 0.3.
        """

    @abstractmethod
    def read(self, source: Source, log: LogBuilder) -> None:
        """Give every record to `log`, in the order of the file.

        Raises:
            LogError: nothing can be read, in one sentence that says why.
            MissingExtra: the package that parses this format is not installed.
        """

    def read_each(self, source: Source, names: Sequence[str], log: LogBuilder) -> None:
        """Read files of a directory, each a run of its own."""
        for place, name in enumerate(names):
            if place:
                log.new_run()
            self.read(source.child(name), log)
