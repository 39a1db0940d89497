"""Takes tables row by row, whatever they come from: CSV, JSON lines, Parquet."""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import Roles, as_step, evaluates, filled, is_noise, plain
from foreshock.core.log_names import signal_of
from foreshock.core.text_reader import number

NUM_SAMPLED = 500
"""Rows that columns are judged by. Our choice: they hold several evaluations and epochs."""

BLOCK_ROWS = 2048
"""Rows that are given at once where they are alike."""

MAX_RUNS = 50
MAX_WAITING = 500_000
"""Rows of runs that stand beside or between those of the first run: kept till its end."""

_NAN = float("nan")
_NUMBERS = frozenset({str, float, int})
_PART = re.compile(r"(train|val)/\w{1,40}_loss\Z")
_KEPT_ONCE = frozenset({"lr", "epoch", "loss_scale", "num_skipped", "num_nan"})
"""What says nothing of an evaluation."""

Place = Any
"""Where a row has a column: an index, or a key."""
Pairs = list[tuple[str, float]]


@dataclass(slots=True)
class Layout:
    """Where a row has what; made once for all rows of the same columns."""

    kept: list[tuple[Place, str]]
    step: Place = None
    epoch: Place = None
    split: Place = None
    rank: Place = None
    run: Place = None
    name: Place = None
    value: Place = None
    loss: Place = None
    companions: list[Place] = field(default_factory=list[Place])
    unusual: list[Place] = field(default_factory=list[Place])
    parts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    by_split: dict[str, list[tuple[Place, str]]] = field(
        default_factory=dict[str, list[tuple[Place, str]]]
    )
    is_plain: bool = False


class RowTaker:
    """Gives rows to a builder, once it is known what their columns are.

    Args:
        log: the builder.
        roles: what the columns are; see `guess_roles`.
    """

    def __init__(self, log: LogBuilder, roles: Roles) -> None:
        self._log = log
        self._roles = roles
        self._first_run: Hashable = None
        self._waiting: dict[Hashable, list[tuple[int | None, Pairs, int]]] = {}
        self._num_waiting = 0
        self._offsets: dict[int, int] = {}
        self._epoch, self._in_epoch = -1, 0
        if roles.total_steps is not None and log.total_steps is None:
            log.total_steps = roles.total_steps

    def layout(self, columns: Sequence[tuple[str, Place]]) -> Layout:
        """Where rows with these columns, (label, place), have what."""
        roles, wanted = self._roles, self._log.wanted
        places = dict(columns)
        taken = (roles.step, roles.split, roles.rank, roles.run, roles.name, roles.value)
        is_summary = any(plain(label) == "train_runtime" for label in places)
        kept = [
            (place, label)
            for label, place in columns
            if label in wanted or (label not in taken and not is_noise(label))
        ]
        if is_summary:
            kept = [one for one in kept if not plain(one[1]).startswith("train_")]
        found = Layout(
            kept=kept,
            step=places.get(roles.step or ""),
            epoch=places.get(roles.epoch or "") if roles.in_epoch else None,
            split=places.get(roles.split or ""),
            rank=places.get(roles.rank or ""),
            run=places.get(roles.run or ""),
            name=places.get(roles.name or ""),
            value=places.get(roles.value or ""),
            loss=places.get(roles.loss or ""),
            parts=_parts(list(places)),
        )
        if roles.companions and not is_summary:
            found.companions = [places[one] for one in roles.companions if one in places]
            found.unusual = [place for one, place in columns if one not in roles.usual]
        others = (found.epoch, found.split, found.rank, found.run, found.name)
        found.is_plain = not found.parts and all(one is None for one in others)
        return found

    def take_block(self, rows: Sequence[Any], layout: Layout, lines: Sequence[int]) -> bool:
        """Give many rows of one layout to the builder, column by column: the same as `take`
        for each, and faster. Whether it could; if not, nothing was given.

        Args:
            rows: sequences of as many fields each.

        Raises:
            LogFull: there is no room for more rows.
        """
        if not layout.is_plain or layout.step is None:
            return False
        fields = cast("list[Sequence[Any]]", list(zip(*rows, strict=True)))
        dense: list[tuple[str, Sequence[float]]] = []
        sparse: list[tuple[str, list[tuple[int, float]]]] = []
        for place, label in layout.kept:
            values = _floats(fields[place])
            if values is not None:
                dense.append((label, values))
                continue
            if place == layout.loss and layout.companions:
                return False  # some may be NaN
            given = [
                (nth, value)
                for nth, field_ in enumerate(fields[place])
                if (value := as_value(field_)) is not None
            ]
            if given:
                sparse.append((label, given))
        if not dense or (layout.companions and layout.loss is None):
            return False
        columns = self._log.columns_of([label for label, _ in dense])
        others = self._log.columns_of([label for label, _ in sparse])
        if columns is None or others is None:
            return False
        start = self._log.num_rows
        self._log.rows(_steps(fields[layout.step]), columns, [values for _, values in dense], lines)
        for column, (_, given) in zip(others, sparse, strict=True):
            for nth, value in given:
                column.add_row(start + nth)
                column.add_value(value)
        return True

    def take(self, row: Any, layout: Layout, line: int) -> None:
        """Give one row to the builder.

        Raises:
            LogFull: there is no room for more rows.
        """
        where = layout.step
        step = None if where is None else as_step(row[where])
        kept = layout.kept
        is_eval = False
        if not layout.is_plain:
            if layout.split is not None and evaluates(text := str(row[layout.split])):
                is_eval = True
                kept = self._evaluated(layout, text)
            if layout.epoch is not None:
                step = self._across(as_step(row[layout.epoch]), step, is_eval)
        pairs: Pairs = []
        for place, label in kept:
            if (value := as_value(row[place])) is not None:
                pairs.append((label, value))
        lacks = layout.loss is None or row[layout.loss] is None or row[layout.loss] == ""
        if lacks and layout.companions and not is_eval and _has_lost(row, layout):
            pairs.append((self._roles.loss or "loss", _NAN))
            self._log.note(
                "rows that lack only the loss are read as NaN: some programs write none then"
            )
        if layout.is_plain:
            if pairs:
                self._log.row(step, pairs, line=line)
            return
        if layout.name is not None and layout.value is not None:
            pairs = _named(row[layout.name], row[layout.value], is_eval)
        for total, labels in layout.parts.items():
            parts = [value for label, value in pairs if label in labels]
            if len(parts) == len(labels):
                pairs.append((total, sum(parts)))
        if pairs:
            rank = None if layout.rank is None else as_step(row[layout.rank])
            self._give(step, pairs, line, rank, None if layout.run is None else row[layout.run])

    def finish(self) -> None:
        """Give the rows of further runs to the builder, run by run."""
        for rows in self._waiting.values():
            self._log.new_run()
            for step, pairs, line in rows:
                self._log.row(step, pairs, line=line)
        self._waiting.clear()

    def wait(self, run: Hashable, step: int | None, pairs: Pairs, line: int) -> None:
        """Keep a row of another run till `finish`."""
        if run not in self._waiting and len(self._waiting) >= MAX_RUNS - 1:
            self._log.note(f"only the first {MAX_RUNS} runs were read")
            return
        if self._num_waiting >= MAX_WAITING:
            self._log.note(f"of further runs only the first {MAX_WAITING:,} rows were read")
            return
        self._num_waiting += 1
        self._waiting.setdefault(run, []).append((step, pairs, line))

    def _give(
        self, step: int | None, pairs: Pairs, line: int, rank: int | None, run: object
    ) -> None:
        if isinstance(run, (str, int)) and run != "":
            if self._first_run is None:
                self._first_run = run
            elif run != self._first_run:
                self.wait(run, step, pairs, line)
                return
        self._log.row(step, pairs, line=line, rank=rank)

    def _evaluated(self, layout: Layout, text: str) -> list[tuple[Place, str]]:
        """The columns of a row that belongs to an evaluation, under names of one."""
        if text in layout.by_split:
            return layout.by_split[text]
        word = evaluates(text)
        kept = [
            (place, label if signal.startswith("eval_") else f"{word}/{label}")
            for place, label in layout.kept
            if (signal := signal_of(label)[0]) not in _KEPT_ONCE
        ]
        if len(layout.by_split) < 64:
            layout.by_split[text] = kept
        return kept

    def _across(self, epoch: int | None, step: int | None, is_eval: bool) -> int | None:
        """A step that begins anew in every epoch, counted through; None for evaluations."""
        if epoch is None or step is None or is_eval:
            return None
        offsets = self._offsets
        if epoch != self._epoch:
            if epoch not in offsets:
                before = offsets.get(self._epoch, 0)
                anew = step <= self._in_epoch
                offsets[epoch] = before + self._in_epoch if anew else before
            self._epoch, self._in_epoch = epoch, 0
        self._in_epoch = max(self._in_epoch, step)
        return offsets[epoch] + step


def as_value(field: object) -> float | None:
    """The number in a field, a string or not; None if there is none.

    >>> as_value("1,048.5"), as_value(3), as_value("nan"), as_value(None), as_value(True)
    (1048.5, 3.0, nan, None, None)
    """
    if isinstance(field, str):
        return number(field) if field else None
    if isinstance(field, float):
        return field
    if isinstance(field, int) and not isinstance(field, bool) and abs(field) < 1 << 62:
        return float(field)
    return None


def _steps(fields: Sequence[Any]) -> Sequence[int | None]:
    kinds = set(map(type, fields))
    if kinds == {int}:
        return fields
    if kinds == {str}:
        try:
            return list(map(int, fields))
        except ValueError:
            pass
    return list(map(as_step, fields))


def _floats(fields: Sequence[Any]) -> list[float] | None:
    """Every field as a number; None if one of them is none, or takes a closer look."""
    kinds = set(map(type, fields))
    if not kinds <= _NUMBERS:
        return None
    try:
        return list(map(float, fields))
    except (ValueError, OverflowError):
        return None


def _has_lost(row: Any, layout: Layout) -> bool:
    """Whether a row without a loss is one that had one."""
    return any(filled(row[place]) for place in layout.companions) and not any(
        filled(row[place]) for place in layout.unusual
    )


def _named(name: object, value: object, is_eval: bool) -> Pairs:
    """The one value of a row that names it."""
    read = number(value) if isinstance(value, str) else value
    if not isinstance(name, str) or not name or is_noise(name) or isinstance(read, bool):
        return []
    if not isinstance(read, (int, float)) or (abs(read) >= 1 << 62 and isinstance(read, int)):
        return []
    return [(f"eval/{name}" if is_eval else name, float(read))]


def _parts(labels: Sequence[str]) -> dict[str, list[str]]:
    """Losses of parts, of which there is no total: `train/box_loss`, `train/cls_loss`, …

    >>> _parts(["epoch", "train/box_loss", "train/cls_loss"])
    {'train/loss': ['train/box_loss', 'train/cls_loss']}
    """
    found: Mapping[str, list[str]] = {"train": [], "val": []}
    for label in labels:
        if match := _PART.match(label):
            found[match[1]].append(label)
    others = {signal_of(one)[0] for one in labels if not _PART.match(one)}
    totals = {"train": "loss", "val": "eval_loss"}
    return {
        f"{side}/loss": parts
        for side, parts in found.items()
        if len(parts) > 1 and totals[side] not in others
    }
