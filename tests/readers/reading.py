"""What tests of text formats share: a text read as a file, and how sure the readers are."""

from pathlib import Path

from foreshock.catalog import members
from foreshock.core.log import Log, LoggedRun
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource


def read(tmp_path: Path, text: str | bytes, reader: str) -> Log:
    """Read a text as a log of a format."""
    path = tmp_path / "train.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path, format=reader)


def run_of(tmp_path: Path, text: str | bytes, reader: str) -> LoggedRun:
    """The only run of a log."""
    runs = read(tmp_path, text, reader).runs
    assert len(runs) == 1
    return runs[0]


def points(run: LoggedRun, signal: str) -> list[tuple[int, float]]:
    """Steps and values of a series; a NaN as None, so that lists can be compared."""
    series = run.series[signal]
    pairs = zip(series.steps.tolist(), series.values.tolist(), strict=True)
    return [(step, None if value != value else value) for step, value in pairs]


def first(tmp_path: Path, text: str) -> str:
    """Name of the reader that is surest of a text; empty if none knows it."""
    path = tmp_path / "some.log"
    path.write_text(text)
    ranked = ranking(FileSource(path).sample())
    return ranked[0][1].name if ranked else ""


def certainty(tmp_path: Path, text: str, reader: str) -> float:
    """How sure a reader is of a text."""
    path = tmp_path / "some.log"
    path.write_text(text)
    return members("readers")[reader]().recognises(FileSource(path).sample())
