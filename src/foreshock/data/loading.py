"""Samples read from the datasets of a stream, several at a time where that is possible."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final, runtime_checkable

from foreshock.core.errors import ConfigError, StreamError
from foreshock.data.entry import Key
from foreshock.data.stage import MapDataset, Stage


@runtime_checkable
class BatchedDataset(Protocol):
    """A dataset that reads several samples at once: torch's protocol, which `datasets` keeps."""

    def __getitems__(self, indices: list[int], /) -> list[Any]: ...


@runtime_checkable
class TableDataset(Protocol):
    """A dataset with columns, such as `datasets.Dataset`."""

    @property
    def column_names(self) -> list[str]: ...
    def __getitem__(self, key: Any, /) -> Any: ...


@final
class Sources:
    """The datasets of a stream by name, and the columns that name their samples.

    Args:
        stages: the stages that hold them.

    Raises:
        ConfigError: one name means two datasets, or has two id columns.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._datasets: dict[str, MapDataset] = {}
        self._columns: dict[str, str] = {}
        self._rows: dict[str, dict[str, int]] = {}
        for name, dataset in (item for stage in stages for item in stage.sources.items()):
            if self._datasets.setdefault(name, dataset) is not dataset:
                raise ConfigError(f"source {name!r} is two datasets; give each its own name")
        for name, column in (i for stage in stages for i in (stage.id_columns or {}).items()):
            if self._columns.setdefault(name, column) != column:
                raise ConfigError(f"source {name!r} has the id columns {column!r} and another")

    def load(self, key: Key) -> Any:
        """Read one sample.

        Raises:
            StreamError: the dataset failed.
        """
        source, index = key
        try:
            return self._datasets[source][index]
        except Exception as error:
            raise StreamError(
                f"source {source!r}, index {index}: the dataset raised {type(error).__name__}: "
                f"{error}; repair the sample, or quarantine it in the ledger"
            ) from error

    def load_many(self, keys: Sequence[Key]) -> list[Any]:
        """Read several samples, in the order of `keys`; at once where the dataset can.

        Raises:
            StreamError: a dataset failed; the sample that it failed at is named.
        """
        places: dict[str, list[int]] = {}
        for place, (source, _) in enumerate(keys):
            places.setdefault(source, []).append(place)
        found: list[Any] = [None] * len(keys)
        for source, mine in places.items():
            dataset = self._datasets[source]
            samples: list[Any] | None = None
            if isinstance(dataset, BatchedDataset) and len(mine) > 1:
                try:
                    samples = list(dataset.__getitems__([keys[place][1] for place in mine]))
                except Exception:  # which sample it was shows one by one
                    samples = None
            if samples is None or len(samples) != len(mine):
                samples = [self.load(keys[place]) for place in mine]
            for place, sample in zip(mine, samples, strict=True):
                found[place] = sample
        return found

    def name_of(self, key: Key, sample: Any) -> str | None:
        """The stable id of a sample, or None where no column of its source holds one.

        Raises:
            StreamError: the column was named, and the sample does not have it.
        """
        column = self._columns.get(key[0])
        if column is None:
            return None
        if not isinstance(sample, Mapping) or column not in sample:
            raise StreamError(
                f"source {key[0]!r}, index {key[1]}: the sample has no {column!r}, which "
                "id_columns names"
            )
        return str(sample[column])

    def find(self, key: Key, name: str) -> Key | None:
        """Where the sample with a stable id is now; None if it is gone.

        Raises:
            StreamError: the row has moved, and the dataset has no columns to look for it in.
        """
        source, index = key
        column = self._columns.get(source)
        if column is None:
            return key
        dataset: Any = self._datasets[source]
        if isinstance(dataset, TableDataset):
            if source not in self._rows:
                rows = self._rows[source] = {}
                for row, value in enumerate(dataset[column]):
                    rows.setdefault(str(value), row)
            row = self._rows[source].get(name)
            return None if row is None else (source, row)
        if index < len(dataset) and self.name_of(key, self.load(key)) == name:
            return key
        raise StreamError(
            f"source {source!r}, index {index}: {column} was {name!r} when it was set aside and "
            "is another now; restore the data as it was, or name no id column"
        )
