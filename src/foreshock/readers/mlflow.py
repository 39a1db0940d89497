"""MLflow's store: its SQLite file, or the folder `mlruns` with a text file a metric."""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from foreshock.core.errors import LogError
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import as_step, is_noise
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text import one_line
from foreshock.core.text_reader import number

_MAGIC = b"SQLite format 3\0"
_SCHEMA = re.compile(rb"CREATE TABLE \"?metrics\"?\s*\(")
_COMPUTED = re.compile(r"(?i)\bgenerated\b|\bas\s*\(")
_METRIC = re.compile(r"(?:\A|(.*)/)metrics/(.+)\Z")
_HUGEST = 1.7976931348623157e308
"""What MLflow stores for an infinity."""

MAX_RUNS = 20
_MAX_POINTS = 3_000_000
_MAX_TEXT = 1 << 16
_MAX_TICKS = 3000
_ALLOWED = {"metrics": None, "runs": None, "sqlite_master": None, "sqlite_schema": None}
_QUERY = (
    "SELECT key, value, {step}, timestamp, {nan} FROM metrics WHERE run_uuid = ? "
    "ORDER BY timestamp, {step} LIMIT {limit}"
)


class Point(NamedTuple):
    """One logged value; they sort in the order in which they were logged."""

    time: int
    step: int
    key: str
    value: float


class Mlflow(Reader):
    """`mlflow.db`, table `metrics`: `('loss', 2.5, 1700000000000, 'run', 10, is_nan=0)`.

    A NaN is stored as 0 with `is_nan` set, an infinity as the largest number there is. In
    `mlruns/0/RUN/metrics/loss` a line is `1700000000000 2.5 10`. Of several runs those with
    the most values are read, one after the other. The database is opened read-only, and
    nothing in it but its tables of metrics and runs is looked at.
    """

    name: ClassVar[str] = "mlflow"
    title: ClassVar[str] = "MLflow"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            metrics = any(map(_METRIC.match, sample.children))
            meta = any(one.split("/")[-1] == "meta.yaml" for one in sample.children)
            return 0.93 if metrics and meta else 0.0
        if not sample.head.startswith(_MAGIC):
            return 0.0
        return 0.95 if _SCHEMA.search(sample.head) else 0.3

    def read(self, source: Source, log: LogBuilder) -> None:
        if source.is_dir:
            _give(_from_folder(source, log), log)
            return
        path = source.local_path()
        try:
            with closing(_connect(path)) as database:
                _give(_from_database(database, source.name, log), log)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # names may be no text
            if not log.num_rows:
                said = one_line(str(error), 120)
                raise LogError(f"{source.name} is no readable MLflow database: {said}") from error
            log.note(f"reading the database stopped: {error}")


def _connect(path: str) -> sqlite3.Connection:
    """Open a database that may be hostile: read-only, two tables, no functions, bounded."""
    database = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda raw: raw[:_MAX_TEXT].decode("utf-8", "replace")
    database.execute("PRAGMA trusted_schema = OFF")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT)
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return int(ticks > _MAX_TICKS)

    def allow(
        action: int, table: str | None, _2: str | None, _3: str | None, _4: str | None
    ) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and table in _ALLOWED:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and _2 == "count":
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    database.set_progress_handler(tick, 1_000_000)
    database.set_authorizer(allow)
    return database


def _from_database(
    database: sqlite3.Connection, name: str, log: LogBuilder
) -> Iterator[tuple[str, list[Point]]]:
    """The runs with the most values, oldest first."""
    metrics = _columns(database, "metrics")
    if not {"key", "value", "timestamp", "run_uuid"} <= metrics:
        raise LogError(f"{name} has no table of metrics: it is no database of MLflow")
    runs = _columns(database, "runs")
    counted = database.execute(
        "SELECT run_uuid, COUNT(*) AS num FROM metrics GROUP BY run_uuid ORDER BY num DESC"
    )
    most = [str(run) for run, _ in counted.fetchmany(MAX_RUNS + 1)]
    if len(most) > MAX_RUNS:
        log.note(f"only the {MAX_RUNS} runs with the most values were read")
    order = {run: (0, run) for run in most[:MAX_RUNS]}
    for run in order:
        if "start_time" in runs:
            row = database.execute("SELECT start_time FROM runs WHERE run_uuid = ?", (run,))
            start = next(iter(row.fetchmany(1)), (0,))[0]
            order[run] = (start if isinstance(start, int) else 0, run)
    query = _QUERY.format(
        step="step" if "step" in metrics else "NULL",  # stores of before 2019 have neither
        nan="is_nan" if "is_nan" in metrics else "NULL",
        limit=_MAX_POINTS,
    )
    for run in sorted(order, key=order.__getitem__):
        yield run, [point for row in database.execute(query, (run,)) if (point := _point(row))]


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a plain table; none if there is no such table, or it computes some."""
    found = database.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,))
    kinds = found.fetchmany(10)
    if len(kinds) != 1 or kinds[0][0] != "table":
        return set()
    sql = str(kinds[0][1])
    if not sql.lstrip().startswith("CREATE TABLE") or _COMPUTED.search(sql):
        return set()
    found = database.execute(f"SELECT * FROM {table} LIMIT 0")  # noqa: S608 - a constant
    return {column[0] for column in found.description}


def _point(row: tuple[Any, ...]) -> Point | None:
    key, value, step, time, is_nan = row
    if not isinstance(key, str) or key.startswith("system/") or is_noise(key):
        return None
    if is_nan or value is None:  # SQLite itself keeps NaN as NULL
        value = float("nan")
    if not isinstance(value, (int, float)) or not isinstance(time, int):
        return None
    value = float(value)
    if abs(value) >= _HUGEST:
        value = float("inf") if value > 0 else float("-inf")
    return Point(time, as_step(step) or 0, key, value)


def _from_folder(source: Source, log: LogBuilder) -> Iterator[tuple[str, list[Point]]]:
    """The runs of a folder with the most values, by name."""
    files: dict[str, list[tuple[str, str]]] = {}
    for name in source.children():
        match = _METRIC.match(name)
        if match and not match[2].startswith("system/") and not is_noise(match[2]):
            files.setdefault(match[1] or "", []).append((match[2], name))
    runs: list[tuple[str, list[Point]]] = []
    left = _MAX_POINTS
    for run, metrics in files.items():
        points: list[Point] = []
        for key, name in metrics:
            for _, line in source.child(name).lines():
                log.num_lines += 1
                if left > 0 and (point := _point_of(key, line)):
                    points.append(point)
                    left -= 1
        runs.append((run, sorted(points, key=lambda one: one[:2])))
    if left <= 0:
        log.note(f"only the first {_MAX_POINTS:,} values were read")
    runs.sort(key=lambda one: -len(one[1]))
    if len(runs) > MAX_RUNS:
        log.note(f"only the {MAX_RUNS} runs with the most values were read")
    yield from sorted(runs[:MAX_RUNS], key=lambda one: (one[1][:1], one[0]))


def _point_of(key: str, line: str) -> Point | None:
    fields = line.split()
    if not 2 <= len(fields) <= 5:
        return None
    time, value = as_step(fields[0]), number(fields[1])
    step = as_step(fields[2]) if len(fields) > 2 else 0
    return None if time is None or value is None else Point(time, step or 0, key, value)


def _give(runs: Iterable[tuple[str, list[Point]]], log: LogBuilder) -> None:
    """Give each run's values to the builder, what was logged together in one row."""
    place = 0
    for run, points in runs:
        if not points:
            continue
        if place:
            log.new_run()
        place += 1
        log.facts[f"run {place}"] = run[-60:]
        held: dict[str, float] = {}
        step = points[0].step
        for point in points:
            if point.step != step or point.key in held:
                log.row(step, list(held.items()))
                held = {}
                step = point.step
            held[point.key] = point.value
        log.row(step, list(held.items()))
