"""CSV, TSV and their kin with a header: hand-written ones, exports of W&B, TensorBoard, MLflow."""

from collections.abc import Iterator
from typing import ClassVar

from foreshock.core.errors import LogError
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import KNOWN, Roles, as_step, is_noise, label_of_file
from foreshock.core.log_csv import open_table, take_table
from foreshock.core.log_delimited import Dialect, find_dialect
from foreshock.core.log_names import signal_of, step_place
from foreshock.core.log_table import RowTaker
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text_reader import number

_TENSORBOARD = ("wall time", "step", "value")
_JOINT = " - "
_ENVELOPE = ("__MIN", "__MAX")


class CsvTable(Reader):
    """`step,loss,lr`, then `100,3.25,0.0003`: a header, and a line a row.

    Commas, tabs, semicolons or bars part the fields; decimal commas are understood beside
    the latter three. Which column counts steps is guessed; `epoch` does where nothing finer
    is. A column such as `split` tells evaluations from training, one such as `rank` who
    wrote. Losses of parts (Ultralytics' `train/box_loss`, …) are added up where there is no
    total. A W&B export has a column for each run (`name - train/loss`, with `__MIN` and
    `__MAX`): its runs are given one after the other. A TensorBoard download
    (`Wall time,Step,Value`) is named after its file.
    """

    name: ClassVar[str] = "csv_table"
    title: ClassVar[str] = "CSV"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.85 if {"results.csv", "args.yaml"} <= set(sample.children) else 0.0
        dialect = find_dialect(sample.lines[:100])
        if dialect is None:
            return 0.0
        names = [_metric(one) for one in dialect.header]
        named = {signal_of(one)[0] for one in names}
        is_file = sample.name.lower().endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz"))
        steps = any(step_place(one) < 1000 or one.lower() == "epoch" for one in names)
        if named & KNOWN or (steps and is_file):
            return 0.8 if is_file else 0.7
        return 0.28 if is_file or steps else 0.15

    def read(self, source: Source, log: LogBuilder) -> None:
        if source.is_dir:
            self.read(source.child("results.csv"), log)
            return
        found = open_table(source)
        if found is None:
            raise LogError(f"{source.name} has no header with lines of as many fields below it")
        dialect, rows = found
        if tuple(one.lower() for one in dialect.header[:3]) == _TENSORBOARD:
            names = ("", dialect.header[1], label_of_file(source.name))
            take_table(dialect, rows, log, names)
        elif _is_export(dialect.header):
            _take_export(dialect, rows, log)
        else:
            take_table(dialect, rows, log)


def _metric(name: str) -> str:
    """The metric that a column of a W&B export shows; other names as they are."""
    return name.rpartition(_JOINT)[2]


def _is_export(header: tuple[str, ...]) -> bool:
    joined = sum(_JOINT in name for name in header[1:])
    envelope = any(name.endswith(_ENVELOPE) for name in header)
    return joined == len(header) - 1 or (joined > 0 and envelope)


def _take_export(dialect: Dialect, rows: Iterator[tuple[int, list[str]]], log: LogBuilder) -> None:
    """Give a W&B export to the builder, run by run."""
    taker = RowTaker(log, Roles())
    columns: dict[str, list[tuple[int, str]]] = {}
    for place, name in enumerate(dialect.header[1:], 1):
        run, joint, label = name.rpartition(_JOINT)
        if not joint or name.endswith(_ENVELOPE) or step_place(label) < 1000:
            continue
        if label in log.wanted or not is_noise(label):
            columns.setdefault(run, []).append((place, label))
    first = next(iter(columns), None)
    for line, fields in rows:
        log.num_lines = line
        if len(fields) != len(dialect.header):
            log.note("lines with other than the header's number of fields were skipped")
            continue
        step = as_step(fields[0])
        for run, places in columns.items():
            pairs = [
                (label, value)
                for place, label in places
                if fields[place] and (value := number(fields[place])) is not None
            ]
            if not pairs:
                continue
            if run == first:
                log.row(step, pairs, line=line)
            else:
                taker.wait(run, step, pairs, line)
    taker.finish()
    if len(columns) > 1:
        log.facts["runs"] = ", ".join(run[:60] for run in list(columns)[:20])
