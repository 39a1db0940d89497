"""Reads a log of any known format: recognises it, or takes the format it is told."""

from collections.abc import Callable, Mapping
from pathlib import Path

from foreshock.catalog import members
from foreshock.core.errors import ForeshockError, LogError
from foreshock.core.log import Log
from foreshock.core.log_builder import LogBuilder, LogFull
from foreshock.core.reader import Reader, Sample
from foreshock.source import FileSource


def formats() -> dict[str, str]:
    """Names of the known formats, with what people call them."""
    return {name: kind.title for name, kind in members("readers").items()}


def ranking(sample: Sample) -> list[tuple[float, Reader]]:
    """The readers that recognise a sample, surest first."""
    found = [(reader.recognises(sample), reader) for reader in _readers().values()]
    return sorted((one for one in found if one[0] > 0), key=lambda one: (-one[0], one[1].name))


def read_log(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002
    labels: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> Log:
    """Read one log.

    Args:
        path: a file, or a directory that is one log (a run directory, event files).
        format: name of its format; recognised by its content if None.
        labels: signal to the label of the column that measures it.
        progress: told how many bytes have been read since it was told last.

    Raises:
        LogError: it cannot be read, or no reader finds anything in it.
    """
    log = LogBuilder(labels=labels)
    source = FileSource(path, note=log.note, progress=progress)
    sample = source.sample()
    if not sample.is_dir and not sample.head:
        raise LogError(f"{path} is empty")
    if format is not None:
        if format not in _readers():
            raise LogError(f"there is no format {format!r}; there are {', '.join(_readers())}")
        reader = _readers()[format]
    else:
        ranked = ranking(sample)
        if not ranked:
            raise LogError(
                f"{path} is of no known format: name one with --format, or the columns with --map"
            )
        reader = ranked[0][1]
    try:
        reader.read(source, log)
    except LogFull:
        pass
    except ForeshockError as error:
        if not log.num_rows:
            raise
        log.note(f"reading stopped: {error}")
    read = log.finish(path=str(path), format=reader.name, title=reader.title)
    if not read.runs:
        raise LogError(f"{path} was taken for {reader.title}, but no value was found in it")
    return read


def _readers() -> dict[str, Reader]:
    return {name: kind() for name, kind in members("readers").items()}
