"""`foreshock.open`: a run's readings by series and step, for notebooks and tools.

>>> import tempfile
>>> from foreshock.durable import RealDisk
>>> from foreshock.journal import Journal, RunView
>>> run_dir = Path(tempfile.mkdtemp()) / "run"
>>> with Journal.create(RealDisk(), run_dir, {}, lambda: 0.0) as journal:
...     journal.open_readings(1, ["loss/global", "grad_norm/blocks.0", "grad_norm/blocks.1"])
...     for step in range(1, 4):
...         journal.append_reading(step, 1, np.array([8 / step, 0.5, 0.25], np.float32))
>>> data = open(run_dir)
>>> found = data.read("grad_norm/*", steps=(2, None))
>>> found.series, found.steps.tolist(), found.values.tolist()
(('grad_norm/blocks.0', 'grad_norm/blocks.1'), [2, 3], [[0.5, 0.25], [0.5, 0.25]])
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.kept_steps import attempt_starts, kept_to
from foreshock.core.names import split_series
from foreshock.core.reading import ABSENT, is_absent
from foreshock.core.records import ReadingBlock
from foreshock.durable import REAL_DISK
from foreshock.journal import Journal, RunView
from foreshock.readings_files import ALL, AttemptReader
from foreshock.readings_parquet import MAX_VALUES, Steps, require_pyarrow, value_array

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingImports]
    import pyarrow as pa

Patterns = str | Sequence[str] | None
"""Names or glob patterns of series; None for all of them."""

_BLOCK_VALUES: Final = 1 << 23
"""Values in one of `blocks`: 32 MiB."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RunReadings:
    """What `RunData.read` found.

    Attributes:
        series: names, `[S]`.
        steps: `[T]`, rising.
        attempts: `[T]` the attempt in which each step was trained.
        committed: `[T]` whether the step's update was made.
        values: `[T, S]` float32; a value that was not measured is `ABSENT`, one that was NaN
            is any other NaN (`foreshock.core.reading.is_absent` tells them apart).
    """

    series: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.int64]
    committed: npt.NDArray[np.bool_]
    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, series: str) -> npt.NDArray[np.float32]:
        """`[T]` values of one series. Raises KeyError if it was not read."""
        if series not in self.series:
            raise KeyError(series)
        return self.values[:, self.series.index(series)]

    def to_arrow(self, *, long: bool = False) -> "pa.Table":
        """An Arrow table: `step` and one column a series, null where nothing was measured.

        With `long`, a row a reading: attempt, step, signal, scope, value, series after series;
        what was not measured has no row.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        require_pyarrow()
        import pyarrow as pa  # noqa: PLC0415

        if not long:
            arrays = [pa.array(self.steps)]
            arrays += [value_array(self.values[:, at]) for at in range(len(self.series))]
            return pa.Table.from_arrays(arrays, names=["step", *self.series])
        columns = self._long()
        names = [split_series(name) for name in self.series]
        where = pa.array(columns["series"])
        texts = [pa.array([pair[at] for pair in names], pa.string()) for at in (0, 1)]
        signal, scope = (pa.DictionaryArray.from_arrays(where, text) for text in texts)
        arrays = [pa.array(columns["attempt"]), pa.array(columns["step"]), signal, scope]
        return pa.Table.from_arrays(
            [*arrays, pa.array(columns["value"])],
            names=["attempt", "step", "signal", "scope", "value"],
        )

    def to_pandas(self, *, long: bool = False) -> "pd.DataFrame":
        """A DataFrame: index `step`, a column a series; with `long`, as `to_arrow` has it.

        pandas has one NaN only: what was not measured looks like what was NaN, but for `long`,
        where it has no row.

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415 # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra(
                "a DataFrame needs pandas, which is not installed: pip install pandas, or use "
                "`values` and `steps`, or `to_arrow`"
            ) from error
        if not long:
            index = pd.Index(self.steps, name="step")
            return pd.DataFrame(self.values, index=index, columns=list(self.series))
        columns = self._long()
        names = [split_series(name) for name in self.series]
        where = columns["series"]
        signals = np.array([signal for signal, _ in names], object)[where]
        scopes = np.array([scope for _, scope in names], object)[where]
        return pd.DataFrame(
            {
                "attempt": columns["attempt"],
                "step": columns["step"],
                "signal": pd.Categorical(signals),
                "scope": pd.Categorical(scopes),
                "value": columns["value"],
            }
        )

    def _long(self) -> dict[str, npt.NDArray[Any]]:
        by_series = np.ascontiguousarray(self.values.T)
        where, at = np.nonzero(~is_absent(by_series))
        return {
            "attempt": self.attempts[at],
            "step": self.steps[at],
            "series": where.astype(np.int32),
            "value": by_series[where, at],
        }


@final
class RunData:
    """The readings of a run, finished or going on; made by `foreshock.open`.

    Nothing is locked or written, and only the columns and stretches asked for are read. What
    was opened stays open until `close`, so that the next read is quicker. For one thread.

    Every method raises JournalError if a file is damaged at its root or forged, MissingExtra
    if readings are compacted and pyarrow is not installed, and OSError if the disk fails.
    """

    def __init__(self, run_dir: Path) -> None:
        """For `foreshock.open` only."""
        self.run_dir = run_dir
        self._readers: dict[int, AttemptReader] = {}
        self._read_bytes = self._decisions_bytes()
        self._view = Journal.read(REAL_DISK, run_dir)

    @property
    def identity(self) -> dict[str, Any]:
        """What `run.json` says."""
        return self._view.identity

    def attempts(self) -> list[int]:
        """The attempts that have readings, rising."""
        return [attempt for attempt in self._refreshed().attempts() if self._series(attempt)]

    def series(self, attempt: int | None = None) -> tuple[str, ...]:
        """The names of what was measured, in one attempt or in any."""
        chosen = self.attempts() if attempt is None else [attempt]
        return tuple(dict.fromkeys(name for one in chosen for name in self._series(one)))

    def select(self, series: Patterns = None, attempt: int | None = None) -> tuple[str, ...]:
        """The names of the series that names and patterns fit, each once.

        Raises:
            ConfigError: one of them fits none, or the attempt has no readings.
        """
        known = self.series(attempt)
        if attempt is not None and not known:
            raise ConfigError(
                f"{self.run_dir}: attempt {attempt} has no readings; there are {self.attempts()}"
            )
        if series is None:
            return known
        patterns = [series] if isinstance(series, str) else list(series)
        return tuple(dict.fromkeys(name for one in patterns for name in _fitting(one, known)))

    def read(
        self,
        series: Patterns = None,
        steps: Steps | None = None,
        attempt: int | None = None,
    ) -> RunReadings:
        """Read some series at some steps.

        Without `attempt`, the run as it ended, or as it stands: of a step that was trained
        twice the later attempt. An attempt that starts at step 100, after a rollback or on a
        resume, undoes what earlier ones measured after step 100; that it does so stands in
        the decisions journal, and counts also before it has measured anything itself.

        Args:
            series: names, or patterns with `*`, `?` and `[...]` over the whole name, as in
                `"grad_norm/*"`; all series by default.
            steps: the first and the last step, both included; None in a pair is no limit.
            attempt: one attempt as it was, undone steps included.

        Raises:
            ConfigError: a name or pattern fits no series, the attempt has no readings, or more
                is asked for than fits at once (use `blocks`).
        """
        chosen = self.select(series, attempt)
        parts: list[tuple[int, ReadingBlock]] = []
        num_values = 0
        for one, limits in self._spans(steps, attempt):
            known = set(self._series(one))
            block = self._reader(one).read([name for name in chosen if name in known], limits)
            parts.append((one, block))
            num_values += len(block.steps) * max(1, len(chosen))
            if num_values > MAX_VALUES:
                raise ConfigError(
                    f"more than {MAX_VALUES:,} values at once: ask for fewer series or steps, or "
                    "go through `blocks`"
                )
        return _assembled(parts, chosen)

    def blocks(
        self,
        series: Patterns = None,
        steps: Steps | None = None,
        attempt: int | None = None,
    ) -> Iterator[RunReadings]:
        """The same as `read`, in blocks of consecutive steps that take little memory."""
        chosen = self.select(series, attempt)
        at_once = max(1, _BLOCK_VALUES // max(1, len(chosen)))
        for one, limits in self._spans(steps, attempt):
            found = np.sort(self._reader(one).read([], limits).steps)
            for start in range(0, len(found), at_once):
                some = found[start : start + at_once]
                yield self.read(chosen, (int(some[0]), int(some[-1])), one)

    def close(self) -> None:
        """Close every file; reading opens them anew."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refreshed(self) -> RunView:
        """The decisions as they are now: the run may have gone back since."""
        size = self._decisions_bytes()
        if size != self._read_bytes:
            self._view, self._read_bytes = Journal.read(REAL_DISK, self.run_dir), size
        return self._view

    def _decisions_bytes(self) -> int:
        path = self.run_dir / "decisions.jsonl"
        return REAL_DISK.size(path) if REAL_DISK.exists(path) else 0

    def _reader(self, attempt: int) -> AttemptReader:
        if attempt not in self._readers:
            self._readers[attempt] = self._view.reader(attempt)
        return self._readers[attempt]

    def _series(self, attempt: int) -> tuple[str, ...]:
        try:
            return self._reader(attempt).series()
        except FileNotFoundError:
            return ()

    def _spans(self, steps: Steps | None, attempt: int | None) -> list[tuple[int, Steps]]:
        """Each attempt with the steps wanted of it, in order."""
        first, last = ALL if steps is None else steps
        if attempt is not None:
            return [(attempt, (first, last))]
        view = self._refreshed()
        starts = attempt_starts(view.records)
        found = [one for one in view.attempts() if self._series(one)]
        for one in found:
            if one not in starts:  # its record was lost with the end of the decisions
                own = self._reader(one).read([]).steps
                if len(own):
                    starts[one] = int(own.min()) - 1
        ends = kept_to(starts)
        spans: list[tuple[int, Steps]] = []
        for one in found:
            ends_at = ends.get(one)
            limit = last if ends_at is None else ends_at if last is None else min(last, ends_at)
            if first is None or limit is None or first <= limit:
                spans.append((one, (first, limit)))
        return spans


def open(run_dir: str | PathLike[str]) -> RunData:  # noqa: A001 - called as foreshock.open
    """Look at the readings of a run, also while it goes on: `foreshock.open`.

    Raises:
        RunDirError: this is no run directory, or another version made it.
        JournalError: a decision that was safe on disk is damaged.
    """
    return RunData(Path(run_dir))


def _fitting(pattern: str, known: Sequence[str]) -> list[str]:
    if pattern in known:
        return [pattern]
    compiled = re.compile(translate(pattern))
    found = [name for name in known if compiled.match(name)]
    if not found:
        near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or list(known[:3])
        raise ConfigError(
            f"no series fits {pattern!r:.80}; near are {', '.join(near)}"
            if near
            else f"no series fits {pattern!r:.80}: the run has no readings"
        )
    return found


def _assembled(parts: Sequence[tuple[int, ReadingBlock]], series: tuple[str, ...]) -> RunReadings:
    num_rows = sum(len(block.steps) for _, block in parts)
    place = {name: at for at, name in enumerate(series)}
    only = parts[0][1] if len(parts) == 1 else None
    if only is not None and only.series == series:
        values = only.values
    else:
        values = np.empty((len(series), num_rows), np.float32).T
        at = 0
        for _, block in parts:
            rows = slice(at, at + len(block.steps))
            if len(block.series) < len(series):
                values[rows] = ABSENT
            for column, name in enumerate(block.series):
                values[rows, place[name]] = block.values[:, column]
            at += len(block.steps)
    flags = [block.flags for _, block in parts]
    return RunReadings(
        series=series,
        steps=np.concatenate([np.zeros(0, np.int64), *(block.steps for _, block in parts)]),
        attempts=np.concatenate(
            [np.zeros(0, np.int64), *(np.full(len(block.steps), one) for one, block in parts)]
        ),
        committed=(np.concatenate([np.zeros(0, np.int32), *flags]) & 1).astype(np.bool_),
        values=values,
    )
