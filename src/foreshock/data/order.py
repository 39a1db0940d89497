"""Which sample stands at which position: pure arithmetic, without a dataset in sight.

A run is an ordered list of stages; a stage is a seeded mixture of named sources. A position
counts samples from the start of the run, so neither batch size nor world size enters here.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from foreshock.core.errors import ConfigError, StreamError
from foreshock.data.feistel import MAX_SIZE, feistel, feistel_array, feistel_inverse
from foreshock.data.reorder import Reorder

__all__ = ["Order", "SampleId", "SourceShare", "StageOrder", "feistel", "feistel_array"]

FORMAT = "foreshock-order-1"
"""Changes whenever the same description would yield another order."""


class SampleId(NamedTuple):
    """The name of a sample that outlives batch size, world size and repeats."""

    stage: str
    source: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (no one searches an id)


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """One source of a stage: how many samples it holds and which share it is to have.

    Args:
        name: the source's name; the same name means the same data in every stage.
        num_samples: how many samples the dataset holds, at least 1.
        share: weight in the mixture, above 0, in any unit (shares are normalised);
            None means "in proportion to its size".
    """

    name: str
    num_samples: int
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageOrder:
    """A stage: a mixture of sources, permuted within the stage, afresh in every repeat.

    One repeat holds `num_samples` positions, by default as many as the sources hold
    together. Source i gets a quota of them in proportion to its share, rounded by largest
    remainder (ties: the earlier source). Each source is walked through in passes, every pass
    a permutation of its own, and a repeat goes on where the last one stopped. So at the end
    of every repeat any two samples of a source have been visited equally often, give or take
    one: a quota below the size gives a random subset, another one next time; a quota above
    it repeats the source. Without shares and `num_samples` a repeat is an epoch: every
    sample exactly once.

    Visits of one repeat are shuffled over the whole repeat: where a quota exceeds the size,
    two visits of a sample may be close together. A smaller `num_samples` with more `repeats`
    spreads them further apart.

    Args:
        name: unique within the order; it enters the permutation.
        sources: at least one; either all or none have a share.
        num_samples: positions in one repeat.
        repeats: how often; None is endless and allowed in the last stage only.

    Raises:
        ConfigError: a value outside these limits, or a source whose quota rounds to 0.

    >>> stage = StageOrder(name="mix", num_samples=10, sources=(
    ...     SourceShare(name="web", num_samples=100, share=0.7),
    ...     SourceShare(name="code", num_samples=2, share=0.3)))
    >>> stage.quotas
    (7, 3)
    >>> sum(stage.locate(i, seed=0).source == "code" for i in range(10))
    3

    No source for the pass rule: our choice, because no sample is then dropped for good.
    """

    name: str
    sources: tuple[SourceShare, ...]
    num_samples: int | None = None
    repeats: int | None = 1

    def __post_init__(self) -> None:
        where = f"stage {self.name!r}"
        names = [s.name for s in self.sources]
        shares = [s.share for s in self.sources]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{where}: sources={names}; give one or more, each named once")
        if empty := [s.name for s in self.sources if s.num_samples < 1]:
            raise ConfigError(f"{where}: {empty} hold no samples; leave empty sources out")
        if None in shares and set(shares) != {None}:
            raise ConfigError(f"{where}: shares={shares}; give every source a share, or none")
        if not all(s is None or 0 < s < float("inf") for s in shares):
            raise ConfigError(f"{where}: shares={shares}; each must be finite and above 0")
        if self.num_samples is not None and self.num_samples < 1:
            raise ConfigError(f"{where}: num_samples={self.num_samples}; must be at least 1")
        if self.repeats is not None and self.repeats < 1:
            raise ConfigError(f"{where}: repeats={self.repeats}; must be at least 1, or None")
        if starved := [n for n, q in zip(names, self.quotas, strict=True) if q == 0]:
            raise ConfigError(
                f"{where}: with num_samples={self.num_per_repeat} the quota of {starved} rounds "
                "to 0; raise num_samples or their share, or leave them out"
            )

    @cached_property
    def num_per_repeat(self) -> int:
        """Positions in one repeat."""
        return self.num_samples or sum(s.num_samples for s in self.sources)

    @cached_property
    def quotas(self) -> tuple[int, ...]:
        """Positions that each source has in one repeat; they sum to `num_per_repeat`."""
        shares = [Fraction(s.num_samples if s.share is None else s.share) for s in self.sources]
        whole = sum(shares)
        exact = [share * self.num_per_repeat / whole for share in shares]
        quotas = [int(quota) for quota in exact]
        by_remainder = sorted(range(len(exact)), key=lambda i: quotas[i] - exact[i])
        for i in by_remainder[: self.num_per_repeat - sum(quotas)]:
            quotas[i] += 1
        return tuple(quotas)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.quotas))

    @property
    def total(self) -> int | None:
        """Positions in all repeats; None if endless."""
        return None if self.repeats is None else self.num_per_repeat * self.repeats

    def locate(self, offset: int, seed: int) -> SampleId:
        """Return the sample at `offset` from the stage's start (not bounded by `repeats`)."""
        repeat, offset = divmod(offset, self.num_per_repeat)
        slot = feistel(offset, self.num_per_repeat, _key(seed, self.name, repeat))
        rank = bisect_right(self._ends, slot)
        source, quota = self.sources[rank], self.quotas[rank]
        nth = slot - (self._ends[rank] - quota)
        if quota == source.num_samples:  # one whole pass, already shuffled by the slot
            return SampleId(self.name, source.name, nth)
        visit, nth = divmod(repeat * quota + nth, source.num_samples)
        key = _key(seed, self.name, source.name, visit)
        return SampleId(self.name, source.name, feistel(nth, source.num_samples, key))

    def visits(self, source: str, index: int, seed: int, last_repeat: int) -> Iterator[int]:
        """The offsets at which a sample stands, up to a repeat: the last repeat's first.

        Within a repeat they come in no order.
        """
        rank = next((i for i, one in enumerate(self.sources) if one.name == source), None)
        if rank is None:
            return
        quota, size = self.quotas[rank], self.sources[rank].num_samples
        for visit in range(((last_repeat + 1) * quota - 1) // size, -1, -1):
            if quota == size:
                nth = visit * size + index
            else:
                key = _key(seed, self.name, source, visit)
                nth = visit * size + feistel_inverse(index, size, key)
            repeat, nth = divmod(nth, quota)
            if repeat <= last_repeat:
                slot = self._ends[rank] - quota + nth
                key = _key(seed, self.name, repeat)
                offset = feistel_inverse(slot, self.num_per_repeat, key)
                yield repeat * self.num_per_repeat + offset


class Order:
    """The whole run's order: `position -> SampleId` in O(1), and back from its description.

    Args:
        stages: one after another; names unique; only the last may be endless.
        seed: any integer.

    Raises:
        ConfigError: no stage, a repeated name, an endless stage before the last, or one
            source name with two sizes.

    >>> order = Order([StageOrder(name="a", sources=(SourceShare(name="x", num_samples=4),))], 0)
    >>> sorted(order.locate(p).index for p in range(4)), order.total
    ([0, 1, 2, 3], 4)
    >>> Order.from_description(order.describe()).locate(2) == order.locate(2)
    True
    """

    def __init__(self, stages: Sequence[StageOrder], seed: int) -> None:
        self.stages = tuple(stages)
        self.seed = seed
        names = [s.name for s in self.stages]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"stages={names}; give one or more, each with a name of its own")
        if endless := [s.name for s in self.stages[:-1] if s.total is None]:
            raise ConfigError(f"stages {endless} are endless (repeats=None); only the last may be")
        self.sizes: dict[str, int] = {}
        for source in (source for stage in self.stages for source in stage.sources):
            known = self.sizes.setdefault(source.name, source.num_samples)
            if known != source.num_samples:
                raise ConfigError(
                    f"source {source.name!r} has {known} samples in one stage and "
                    f"{source.num_samples} in another; one name must mean one dataset"
                )
        ends = list(accumulate(stage.total or 0 for stage in self.stages))
        self._starts = [0, *ends[:-1]]
        self.total: int | None = None if self.stages[-1].total is None else ends[-1]
        self._reorders: list[Reorder] = []

    def reorder_from(self, position: int, seed: int) -> bool:
        """From a raw position on, permute what is left of its stage by another seed.

        All before it stays, every sample stands exactly as often in every repeat, and later
        stages are as they were. Reorders add up; the same one again changes nothing. They
        are no part of `describe`: a run's journal keeps them.

        Returns:
            Whether it was new.

        Raises:
            StreamError: the position lies outside the order.
        """
        self._refuse_outside(position)
        rank = self._rank(position)
        stage, start = self.stages[rank], self._starts[rank]
        reorder = Reorder(
            position=position,
            seed=seed,
            stage_start=start,
            stage_stop=None if stage.total is None else start + stage.total,
            num_per_repeat=stage.num_per_repeat,
        )
        new = reorder not in self._reorders
        if new:
            self._reorders.append(reorder)
        return new

    def locate(self, position: int) -> SampleId:
        """Return which sample stands at a raw position, 0 <= position < total.

        Raises:
            StreamError: the position lies outside the order.
        """
        self._refuse_outside(position)
        for reorder in reversed(self._reorders):
            position = reorder.forward(position)
        rank = self._rank(position)
        return self.stages[rank].locate(position - self._starts[rank], self.seed)

    def last_visit(self, source: str, index: int, before: int) -> int | None:
        """Return the last raw position below `before` at which a sample stands, if any.

        Its cost is that of a few `locate`, and grows with how often a repeat visits the
        sample.

        Raises:
            StreamError: no source of this name, or no sample with this index.
        """
        if not 0 <= index < self.sizes.get(source, 0):
            raise StreamError(f"source {source!r}, index {index}: the sources are {self.sizes}")
        if self.total is not None:
            before = min(before, self.total)
        if before <= 0:
            return None
        for rank in range(self._rank(before - 1), -1, -1):
            stage, start = self.stages[rank], self._starts[rank]
            last = before - 1 - start
            if stage.total is not None:
                last = min(last, stage.total - 1)
            best = None
            for offset in stage.visits(source, index, self.seed, last // stage.num_per_repeat):
                repeat = offset // stage.num_per_repeat
                if best is not None and repeat < (best - start) // stage.num_per_repeat:
                    break
                position = start + offset
                for reorder in self._reorders:
                    position = reorder.backward(position)
                if position < before and (best is None or position > best):
                    best = position
            if best is not None:
                return best
        return None

    def _rank(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _refuse_outside(self, position: int) -> None:
        if position < 0 or (self.total is not None and position >= self.total):
            end = "endless" if self.total is None else f"{self.total} positions long"
            raise StreamError(f"position={position}: outside the order, which is {end}")

    def describe(self) -> dict[str, Any]:
        """Return all that determines the order, as JSON-able values."""
        return {"format": FORMAT, "seed": self.seed, "stages": [asdict(s) for s in self.stages]}

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ where the description differs."""
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "Order":
        """Rebuild an order from `describe()`, also after a trip through JSON.

        Raises:
            StreamError: another format, or a field is missing or malformed.
        """
        if description.get("format") != FORMAT:
            raise StreamError(f"format={description.get('format')!r}; this version reads {FORMAT}")
        try:
            _check_types(description)
            stages = [
                StageOrder(**{**s, "sources": tuple(SourceShare(**x) for x in s["sources"])})
                for s in description["stages"]
            ]
            return cls(stages, description["seed"])
        except (AttributeError, KeyError, TypeError, ConfigError) as error:
            raise StreamError(f"not the description of an order: {error}") from error


def _check_types(description: Mapping[str, Any]) -> None:
    """Refuse what `describe` never gives: JSON from anywhere may hold any type.

    Raises:
        TypeError: a field has the wrong type, or a number that no order reaches.
    """
    if type(description["seed"]) is not int:
        raise TypeError("the seed is not a whole number")
    for stage in description["stages"]:
        counts = [stage.get("num_samples"), stage.get("repeats")]
        names = [stage["name"]]
        for source in stage["sources"]:
            counts.append(source["num_samples"])
            names.append(source["name"])
            if type(source.get("share")) not in (float, int, type(None)):
                raise TypeError("a share is not a number")
        if not all(type(name) is str for name in names):
            raise TypeError("a name is not a text")
        if not all(one is None or (type(one) is int and abs(one) <= MAX_SIZE) for one in counts):
            raise TypeError("a number of samples or repeats is not a whole number up to 2**62")


@lru_cache(maxsize=1024)
def _key(*parts: int | str) -> int:
    text = json.dumps(parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
