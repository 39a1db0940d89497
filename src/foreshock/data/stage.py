"""What a stage of a stream is made of: named datasets and how they are mixed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from foreshock.core.errors import ConfigError, StreamError
from foreshock.data.order import SourceShare, StageOrder


@runtime_checkable
class MapDataset(Protocol):
    """A dataset with a length and random access; reading an index twice gives equal samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a stream: named datasets and how they are mixed; see `StageOrder`.

    Args:
        name: unique within the stream; it enters the permutation.
        sources: datasets by name; one name means one dataset in all stages.
        weights: share of each source, above 0, in any unit; None is in proportion to size.
        num_samples: positions in one repeat; None is as many as the sources hold together.
        repeats: how often; None is endless and allowed in the last stage only.
        id_columns: by source, the field of a sample that holds its stable id. Samples that a
            rule sets aside are then named by it, and found by it where rows have moved.
    """

    name: str
    sources: Mapping[str, MapDataset]
    weights: Mapping[str, float] | None = None
    num_samples: int | None = None
    repeats: int | None = 1
    id_columns: Mapping[str, str] | None = None

    def order(self) -> StageOrder:
        """Return the stage without its datasets.

        Raises:
            ConfigError: weights or id columns name other sources, or break a limit of
                `StageOrder`.
        """
        if self.weights is not None and set(self.weights) != set(self.sources):
            raise ConfigError(
                f"stage {self.name!r}: weights for {sorted(self.weights)}, sources "
                f"{sorted(self.sources)}; give every source one weight"
            )
        if strange := sorted(set(self.id_columns or ()) - set(self.sources)):
            raise ConfigError(
                f"stage {self.name!r}: id_columns for {strange}, sources {sorted(self.sources)}"
            )
        shares = tuple(
            SourceShare(
                name=name,
                num_samples=len(dataset),
                share=None if self.weights is None else self.weights[name],
            )
            for name, dataset in self.sources.items()
        )
        return StageOrder(
            name=self.name, sources=shares, num_samples=self.num_samples, repeats=self.repeats
        )


def as_stages(stages: Any) -> list[Stage]:
    """Return what a user may give as a stream's data as a list of stages.

    Raises:
        StreamError: it cannot be read by position, or mixes stages with samples.

    >>> [(stage.name, list(stage.sources)) for stage in as_stages([10, 20, 30])]
    [('data', ['data'])]
    """
    if isinstance(stages, Stage):
        return [stages]
    if isinstance(stages, list | tuple) and any(isinstance(each, Stage) for each in stages):
        if all(isinstance(each, Stage) for each in stages):
            return list(stages)
        raise StreamError("stages mixes Stage objects with samples; give only the stages")
    if isinstance(stages, Mapping):
        return [Stage(name="data", sources=stages)]
    if isinstance(stages, MapDataset) and not isinstance(stages, str | bytes):
        return [Stage(name="data", sources={"data": stages})]
    raise StreamError(
        f"stages is a {type(stages).__name__}; give a dataset with __len__ and __getitem__, a "
        "mapping from name to dataset, or Stage objects. An iterable dataset cannot be resumed "
        "by position: index it first (a memory-mapped file, `datasets.Dataset`), or give the "
        "Guard a loader with state_dict and load_state_dict"
    )
