"""`metrics.csv` of PyTorch Lightning's CSVLogger."""

import re
from typing import ClassVar

from foreshock.core.errors import LogError
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_csv import open_table, take_table
from foreshock.core.log_delimited import find_dialect
from foreshock.core.reader import Reader, Sample, Source

_FILE = "metrics.csv"
_VERSION = re.compile(r"(?:\A|/)version_(\d{1,9})/metrics\.csv\Z")
_MAX_VERSIONS = 50


class LightningCsv(Reader):
    """`epoch,step,train_loss_epoch,train_loss_step,val_loss`, then `0,49,,2.5,`.

    Each call of `log` writes a row of its own, so most fields are empty: rows of steps, then
    one of the epoch's averages, and one of the validation. Where a loss is there both by the
    step and by the epoch, the former is the loss. Of `lightning_logs` every version is a run.
    """

    name: ClassVar[str] = "lightning_csv"
    title: ClassVar[str] = "PyTorch Lightning, metrics.csv"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            names = {one.split("/")[-1] for one in sample.children}
            versions = any(_VERSION.search(one) for one in sample.children)
            return 0.88 if versions or {_FILE, "hparams.yaml"} <= names else 0.0
        dialect = find_dialect(sample.lines[:100])
        if (
            dialect is None
            or dialect.delimiter != ","
            or not {"epoch", "step"} <= set(dialect.header)
        ):
            return 0.0
        rows = [dialect.fields(line) for line in sample.lines[dialect.place + 1 :] if line]
        empty = sum(not field for row in rows for field in row)
        by_step = any(name.endswith(("_step", "_epoch")) for name in dialect.header)
        sparse = empty >= 0.2 * sum(len(row) for row in rows)
        if by_step and sparse:
            return 0.88
        return 0.85 if sample.name == _FILE else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        if not source.is_dir:
            found = open_table(source)
            if found is None:
                raise LogError(f"{source.name} has no header with rows below it")
            take_table(*found, log)
            return
        names = [one for one in source.children() if one.split("/")[-1] == _FILE]
        names.sort(key=lambda one: int(match[1]) if (match := _VERSION.search(one)) else -1)
        self.read_each(source, names[-_MAX_VERSIONS:], log)
