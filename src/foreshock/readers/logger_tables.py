"""Framed tables of OpenAI's logger and its heirs: Baselines, Stable-Baselines, diffusion."""

import re
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS, is_step
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text_reader import NUMBER, number, whole

_CELL = re.compile(
    rf"\A\s{{0,8}}\| (?P<label>[^|\n]{{1,80}}?)\s*\|\s*(?P<value>{NUMBER})?\s*\|\s*\Z"
)
_STEPS = ("total_timesteps", "step", "timesteps", "frame", "frames", "n_updates", "nupdates",
          "iterations", "iteration", "episodes")  # fmt: skip
"""What counts where a run stands, preferred first."""
_DROPPED = re.compile(rf"{COSTS}|\A(?:samples|serial_timesteps)\Z")
_MIN_ROWS = 2
_MAX_CELLS = 200


class LoggerTables(Reader):
    """`| train/loss | 0.31 |`, a line a value, between two lines of dashes.

    A table is a row. A line without a value heads the lines below it, which stand further to
    the right: `| train/ | |`, `|    loss | 0.31 |`. A label that was cut ends in dots.
    """

    name: ClassVar[str] = "logger_tables"
    title: ClassVar[str] = "tables of OpenAI's logger (Baselines, Stable-Baselines, diffusion)"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        num_rows, num_cells = 0, 0
        for line in sample.lines:
            if line[:8].lstrip()[:1] == "|" and (cell := _CELL.match(line)):
                num_cells += cell["value"] is not None
            else:
                num_rows += num_cells > _MIN_ROWS
                num_cells = 0
        num_rows += num_cells > _MIN_ROWS
        return 0.82 if num_rows >= _MIN_ROWS else 0.3 if num_rows else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        table: dict[str, float] = {}
        counters: dict[str, int] = {}
        exact = _Exact()
        head = ""
        for number_, line in source.lines():
            log.num_lines = number_
            cell = _CELL.match(line) if "|" in line[:9] else None
            if cell is None:
                if table:
                    _give(table, counters, log, number_ - 1)
                table, counters, head = {}, {}, ""
                continue
            indent = len(line) - len(line.lstrip(" |"))
            label = cell["label"].strip()
            if cell["value"] is None:
                head = label if label.endswith("/") else ""
                continue
            if head and indent - (len(line) - len(line.lstrip())) <= 2:
                head = ""
            value = number(cell["value"])
            plain = label.lower().replace(" ", "_").rpartition("/")[2]
            if value is None or len(table) >= _MAX_CELLS:
                continue
            if plain in _STEPS and (count := whole(cell["value"])) is not None:
                counters[plain] = exact.of(plain, count, is_rounded="e" in cell["value"].lower())
            elif not is_step(plain) and not _DROPPED.search(head + label):
                table[head + label] = value
        if table:
            _give(table, counters, log, log.num_lines)


class _Exact:
    """Counters that are printed with three digits, `1.98e+04`, counted on by their usual rise."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def of(self, name: str, count: int, *, is_rounded: bool) -> int:
        """The counter of a row."""
        last, rise = self._last.get(name, (-1, 0))
        if is_rounded and rise > 0 and abs(last + rise - count) <= 0.01 * count:
            count = last + rise
        elif last >= 0:
            rise = count - last
        self._last[name] = (count, rise)
        return count


def _give(table: dict[str, float], counters: dict[str, int], log: LogBuilder, line: int) -> None:
    step = next((counters[name] for name in _STEPS if name in counters), None)
    log.row(step, list(table.items()), line=line)
