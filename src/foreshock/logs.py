"""Reads a log of any known format: recognises it, or takes the format it is told."""

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

from foreshock.catalog import members
from foreshock.core.errors import ForeshockError, LogError
from foreshock.core.log import Log
from foreshock.core.log_builder import LogBuilder, LogFull
from foreshock.core.reader import Reader, Sample
from foreshock.core.text import one_line
from foreshock.source import MAX_CHILDREN, FileSource, entries_of, is_file, is_folder, shown

_MIN_SCORE = 0.3
_MIN_FOLDER_SCORE = 0.6
_MAX_DEPTH = 8
_MAX_TRIED = 3
"""Readers tried, where the surest find nothing."""
_NAMES = (
    "*.log", "*.txt", "*.json", "*.jsonl", "*.ndjson", "*.csv", "*.tsv", "*.parquet", "*.out",
    "*.err", "*.gz", "*.tfevents.*", "*.wandb", "*.db", "*.md", "stdout", "stderr", "log",
    "*.log.[0-9]*", "*.o[0-9]*", "*.e[0-9]*",
)  # fmt: skip
"""What a log may be called, in a directory that is searched."""
_PART = re.compile(
    r"(?i)\A(?:train|training|eval|evaluation|val|valid|validation|test|rank_?\d+)\Z"
)
_CHECKPOINT = re.compile(r"\A(?:checkpoint|global_step|step|ckpt)[-_]?(\d{1,15})\Z")


def formats() -> dict[str, str]:
    """Names of the known formats, with what people call them."""
    return {name: kind.title for name, kind in members("readers").items()}


def ranking(sample: Sample) -> list[tuple[float, Reader]]:
    """The readers that recognise a sample, surest first."""
    return _by_surety(_readers().values(), sample)


def find_logs(paths: Iterable[Path | str]) -> list[Path]:
    """The logs that some paths stand for: sorted, none twice.

    A file stands for itself, a pattern such as `runs/*.log` for what it matches, and a
    directory for itself if it is one log (a run directory, event files), else for every log
    below it that a reader recognises. Of the checkpoints of a run that each tell it from the
    beginning, the last is taken.

    Raises:
        LogError: a path does not exist, or there is no log among all of them.
    """
    found: dict[Path, Path] = {}
    given = list(paths)
    for path in given:
        for one in _expanded(path):
            below = (log for _, log in _logs_below(one)) if one.is_dir() else (one,)
            for log in below:
                found.setdefault(log.resolve(), log)
    if not found:
        named = ", ".join(shown(Path(path)) for path in given[:5])
        raise LogError(f"no log of a known format was found in {named or 'no path at all'}")
    return sorted(found.values())


def read_log(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002
    labels: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> Log:
    """Read one log.

    Args:
        path: a file, or a directory that is one log (a run directory, event files). Of any
            other directory the log below it is read that is recognised most surely.
        format: name of its format; recognised by its content if None.
        labels: signal to the label of the column that measures it; `step` to that of the steps.
        progress: told how many bytes have been read since it was told last.

    Raises:
        LogError: it cannot be read, no reader finds anything in it, or it lacks a label.
    """
    if format is not None and format not in _readers():
        raise LogError(f"there is no format {format!r}; there are {', '.join(_readers())}")
    log = LogBuilder(labels=labels)
    source = FileSource(path, note=log.note, progress=progress)
    source, readers = _chosen(source, format, log, progress)
    log, reader = _first_to_find(readers, source, log, labels)
    read = log.finish(path=str(path), format=reader.name, title=reader.title)
    if not read.runs:
        raise LogError(f"{shown(path)} was taken for {reader.title}, but no value was found in it")
    known = log.labels()
    wanted = [label for signal, label in (labels or {}).items() if signal != "step"]
    if lacking := [label for label in wanted if label not in known]:
        there = ", ".join(repr(label) for label in known[:20]) + (", …" if known[20:] else "")
        raise LogError(f"{shown(path)} has no column {lacking[0]!r}; there are {there}")
    return read


def _chosen(
    source: FileSource,
    format: str | None,  # noqa: A002
    log: LogBuilder,
    progress: Callable[[int], None],
) -> tuple[FileSource, list[Reader]]:
    """What to read, and who may read it, surest first."""
    name = shown(source.path)
    if format is not None:
        reader, sample = _readers()[format], source.sample()
        if not sample.is_dir and not sample.head:
            raise LogError(f"{name} is empty")
        if not sample.is_dir or _surety(reader, sample) > 0:
            return source, [reader]
    else:
        ranked = _ranked(source)
        if not ranked and not source.is_dir:
            thorough = source.sample(thorough=True)
            if not thorough.head:
                raise LogError(f"{name} is empty")
            ranked = ranking(thorough)
        if ranked:
            return source, [reader for _, reader in ranked]
    if not source.is_dir:
        raise LogError(
            f"{name} is of no known format: name one with --format, or the columns with --map"
        )
    below = [
        (score, FileSource(path, note=log.note, progress=progress))
        for score, path in _logs_below(source.path, format)
    ]
    if not below:
        raise LogError(
            f"no log of {'a known' if format is None else 'this'} format is below {name}"
        )
    _, best = max(below, key=lambda one: (round(one[0], 1), one[1].size, one[1].name))
    if len(below) > 1:
        where = shown(best.path.relative_to(source.path))
        log.note(f"of {len(below)} logs in this directory {where} was read")
    if format is not None:
        return best, [_readers()[format]]
    return best, [reader for _, reader in _ranked(best)]


def _first_to_find(
    readers: list[Reader], source: FileSource, log: LogBuilder, labels: Mapping[str, str] | None
) -> tuple[LogBuilder, Reader]:
    """What the first reader found that finds anything; else what the surest one came to."""
    _read(readers[0], source, log)
    if not log.num_rows and not source.is_dir:
        for reader in readers[1:_MAX_TRIED]:
            other = LogBuilder(labels=labels)
            with suppress(ForeshockError):
                _read(reader, source, other)
            if other.num_rows:
                return other, reader
    return log, readers[0]


def _by_surety(readers: Iterable[Reader], sample: Sample) -> list[tuple[float, Reader]]:
    found = [(_surety(reader, sample), reader) for reader in readers]
    return sorted((one for one in found if one[0] > 0), key=lambda one: (-one[0], one[1].name))


def _surety(reader: Reader, sample: Sample) -> float:
    try:
        return reader.recognises(sample)
    except Exception:  # a reader may be anyone's: one that fails must not hide the others
        return 0.0


def _read(reader: Reader, source: FileSource, log: LogBuilder) -> None:
    try:
        reader.read(source, log)
    except LogFull:
        pass
    except ForeshockError as error:
        if not log.num_rows:
            raise
        log.note(f"reading stopped: {error}")
    except Exception as error:  # a reader may be anyone's; one damaged log must not end it all
        said = one_line(f"{type(error).__name__}: {error}", 200)
        if not log.num_rows:
            raise LogError(
                f"{shown(source.path)} was taken for {reader.title}, whose reader failed ({said}): "
                "please report this"
            ) from error
        log.note(f"reading stopped: the reader failed ({said}): please report this")


def _expanded(path: Path | str) -> Iterator[Path]:
    """The path, or what it matches if it is a pattern."""
    text = str(path)
    try:
        exists = Path(text).exists()
    except (OSError, ValueError):
        exists = False
    if exists or not glob.has_magic(text):
        FileSource(Path(text))  # says what is wrong with it
        yield Path(text)
        return
    matches = sorted(islice(glob.iglob(text, recursive=True), MAX_CHILDREN))  # noqa: PTH207
    if not matches:
        raise LogError(f"nothing matches {shown(Path(text))}")
    yield from map(Path, matches)


def _logs_below(folder: Path, format: str | None = None) -> list[tuple[float, Path]]:  # noqa: A002
    """The logs in a directory, and how surely each is one; itself, if it is one log."""
    found: list[tuple[float, Path]] = []
    pending = [(folder, 0)]
    num_seen = 0
    while pending and num_seen < MAX_CHILDREN:
        here, depth = pending.pop()
        entries = entries_of(here, lambda sentence: None)
        num_seen += len(entries)
        folders = [here / one.name for one in entries if is_folder(one)]
        files = [one.name for one in entries if is_file(one)]
        score = _score_of_folder(here, files, folders, format)
        if score >= _MIN_FOLDER_SCORE:
            found.append((score, here))
            continue
        if depth < _MAX_DEPTH:
            pending += [(one, depth + 1) for one in folders]
        for name in files:
            if any(fnmatchcase(name, one) for one in _NAMES):
                score = _score_of_file(here / name, format)
                if score >= _MIN_SCORE:
                    found.append((score, here / name))
    return _without_older(found)


def _score_of_folder(
    folder: Path,
    files: list[str],
    folders: list[Path],
    format: str | None,  # noqa: A002
) -> float:
    """How surely a directory is one log: by the files in it, or else by all below it, if none
    of its folders is a log by itself."""
    own = Sample(name=folder.name, is_dir=True, children=tuple(files))
    score = _score(own, format)
    if score >= _MIN_FOLDER_SCORE:
        return score
    score = _score(_sample(folder), format)
    if score >= _MIN_FOLDER_SCORE and all(
        _PART.match(one.name) or _score(_sample(one), format) < _MIN_FOLDER_SCORE for one in folders
    ):
        return score
    return 0.0


def _sample(path: Path) -> Sample:
    """What a path is recognised by; nothing if it cannot be read."""
    try:
        return FileSource(path).sample()
    except LogError:
        return Sample(name=path.name)


def _score(sample: Sample, format: str | None) -> float:  # noqa: A002
    """How surely it is a log (of one format)."""
    return _best(ranking(sample), format)


def _score_of_file(path: Path, format: str | None) -> float:  # noqa: A002
    """The same of a file; 0 if it cannot be read."""
    try:
        return _best(_ranked(FileSource(path)), format)
    except LogError:
        return 0.0


def _best(ranked: Sequence[tuple[float, Reader]], format: str | None) -> float:  # noqa: A002
    return next((score for score, one in ranked if format in (None, one.name)), 0.0)


def _ranked(source: FileSource) -> Sequence[tuple[float, Reader]]:
    """The readers that recognise what a source holds, surest first."""
    if source.is_dir:
        return ranking(source.sample())
    as_it_is = (source.path, source.size, source.changed_ns)
    return _ranked_file(as_it_is, tuple(_readers().values()))


@lru_cache(maxsize=MAX_CHILDREN)
def _ranked_file(
    as_it_is: tuple[Path, int, int], readers: tuple[Reader, ...]
) -> Sequence[tuple[float, Reader]]:
    """Looked at once, though a search and then the reading ask; a file that grew is another."""
    sample = FileSource(as_it_is[0]).sample()
    return _by_surety(readers, sample) if sample.head else ()


def _without_older(found: list[tuple[float, Path]]) -> list[tuple[float, Path]]:
    """Without the logs of checkpoints that a later one, or their run itself, tells as well."""
    newest: dict[tuple[Path, str], tuple[float, float, Path]] = {}
    for score, path in found:
        key, age = (path.parent, path.name), float("inf")
        for folder, inside in ((path, ""), (path.parent, path.name)):
            if checkpoint := _CHECKPOINT.match(folder.name):
                key, age = (folder.parent, inside), float(checkpoint[1])
                break
        if (known := newest.get(key)) is None or age > known[0]:
            newest[key] = (age, score, path)
    return [(score, path) for _, score, path in newest.values()]


@cache
def _readers() -> dict[str, Reader]:
    return {name: kind() for name, kind in members("readers").items()}
