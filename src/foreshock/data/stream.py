"""The resumable stream: batches as a function of (seed, watermark, ledger)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError, StreamError
from foreshock.core.rule import Rule
from foreshock.data.ledger import Ledger, LedgerEntry
from foreshock.data.order import Order, SampleId
from foreshock.data.sample import text_in, tokens_of
from foreshock.data.stage import MapDataset, Stage, as_stages

__all__ = ["Batch", "MapDataset", "NothingLeftError", "Stage", "Stream"]


class NothingLeftError(StreamError):
    """Every sample of an endless stream is in quarantine."""


class Batch(NamedTuple):
    """A batch: this rank's share of the data, and the names of the whole global batch.

    Attributes:
        data: this rank's samples, collated.
        positions: raw positions of the global batch, rising.
        ids: the samples at these positions.
    """

    data: Any
    positions: tuple[int, ...]
    ids: tuple[SampleId, ...]


class Stream:
    """Yields the next samples that are neither quarantined nor rejected, in a fixed order.

    The order of `order.locate(0), order.locate(1), …` is fixed by the stages and the seed.
    A batch is the next `batch_size` admitted positions from the watermark `position` on, and
    rank r gets the r-th of `world_size` contiguous shares. So the sequence of samples is the
    same for every batch size and world size. Each rank runs a stream of its own and they
    need not talk: they agree as long as watermark, ledger and rules agree.

    Online rules judge each sample before it trains. One that fails goes into the ledger
    with its reason, is reported through `on_reject`, and the batch is filled from the
    positions after it. A rejection that was released from the ledger stands released: the
    same rule does not reject that sample again. With rules every rank loads the whole global
    batch; without them only its own share.

    At the end the last batch may be shorter. Ranks must get equal shares, so what cannot be
    divided (fewer than `world_size` samples) does not train; `leftover_samples` counts it.

    Args:
        stages: a `Stage`, a sequence of them, a mapping from name to dataset, or a dataset;
            the last two make one stage called "data" with one repeat.
        batch_size: samples in a global batch, a multiple of `world_size`.
        seed: any integer.
        collate: from a list of samples to `Batch.data`; by default PyTorch's
            `default_collate`, or the list itself where PyTorch is not installed.
        to_text: from a sample to its text, for rules and reports; by default text, bytes
            and a mapping's `text` are recognised.
        rank: this process, 0 <= rank < world_size.
        world_size: processes that share each batch.

    Attributes:
        order: positions to sample ids.
        ledger: the quarantine; never rewound, so not part of `state_dict`.
        rules: online rules; all ranks need the same.
        on_reject: called with (ledger entry, position) of a sample that a rule refused, on
            every rank.
        leftover_samples: samples at the end that could not be divided among the ranks.
        num_unjudged: by rule, how many judgements lacked the tokens or text they need.

    Raises:
        ConfigError: a batch size, rank, weight or stage outside its limits.
        StreamError: `stages` is nothing that can be read from.

    >>> stream = Stream(list(range(10, 16)), batch_size=4, seed=0, collate=sorted)
    >>> first, second = stream.next_batch(), stream.next_batch()
    >>> sorted(first.data + second.data), stream.position
    ([10, 11, 12, 13, 14, 15], 6)
    """

    def __init__(
        self,
        stages: Stage | Sequence[Stage] | Mapping[str, MapDataset] | MapDataset,
        *,
        batch_size: int,
        seed: int,
        collate: Callable[[list[Any]], Any] | None = None,
        to_text: Callable[[Any], str] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank}, world_size={world_size}: 0 <= rank < world_size")
        if batch_size < 1 or batch_size % world_size:
            raise ConfigError(
                f"batch_size={batch_size}: it is global and must be a positive multiple of "
                f"world_size={world_size}"
            )
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self._collate = collate or _default_collate
        self._to_text = to_text or text_in
        self._datasets: dict[str, MapDataset] = {}
        given = as_stages(stages)
        for name, dataset in (item for stage in given for item in stage.sources.items()):
            if self._datasets.setdefault(name, dataset) is not dataset:
                raise ConfigError(f"source {name!r} is two datasets; give each its own name")
        self.order = Order([stage.order() for stage in given], seed)
        self.ledger = Ledger(self.order)
        self.rules: Sequence[Rule] = ()
        self.on_reject: Callable[[LedgerEntry, int], None] | None = None
        self.leftover_samples = 0
        self.num_unjudged: Counter[str] = Counter()
        self._position = 0

    @property
    def position(self) -> int:
        """The watermark: the raw position after the last sample that was given out."""
        return self._position

    def next_batch(self) -> Batch:
        """Return the next batch and move the watermark behind it.

        Raises:
            StopIteration: no batch is left that can be divided among the ranks.
            StreamError: a dataset failed (the watermark has not moved).
            NothingLeftError: every sample of an endless stream is quarantined.
        """
        admitted = self._admit()
        self.leftover_samples = len(admitted) % self.world_size
        share = len(admitted) // self.world_size
        if not share:
            raise StopIteration
        positions, ids, samples = zip(*admitted[: share * self.world_size], strict=True)
        own = range(share * self.rank, share * (self.rank + 1))
        data = [self._load(ids[i]) if samples[i] is _UNREAD else samples[i] for i in own]
        batch = Batch(self._collate(data), positions, ids)
        self._position = batch.positions[-1] + 1
        return batch

    def _admit(self) -> list[tuple[int, SampleId, Any]]:
        """Return the next admitted positions; with the sample where rules had to read it."""
        admitted: list[tuple[int, SampleId, Any]] = []
        position, skipped = self._position, 0
        while len(admitted) < self.batch_size and position != self.order.total:
            sample_id = self.order.locate(position)
            sample = _UNREAD
            held = self.ledger.holds(sample_id.source, sample_id.index, position)
            if not held and self.rules:
                sample = self._load(sample_id)
                held = self._reject(sample_id, position, sample)
            if held:
                skipped += 1
                self._refuse_endless_search(skipped)
            else:
                admitted.append((position, sample_id, sample))
                skipped = 0
            position += 1
        return admitted

    def _reject(self, sample_id: SampleId, position: int, sample: Any) -> bool:
        tokens, text = tokens_of(sample), self._to_text(sample)
        for rule in self.rules:
            if not rule.can_judge(tokens, text):
                self.num_unjudged[rule.name] += 1
                continue
            key = (sample_id.source, sample_id.index)
            entry_id = f"rule/{rule.name}/{key[0]}/{key[1]}"
            reason = rule.judge(tokens, text)
            if reason is None or self.ledger.was_released(entry_id):
                continue
            entry = LedgerEntry(entry_id=entry_id, reason=reason, ids=(key,), rule=rule.name)
            self.ledger.add(entry)
            if self.on_reject is not None:
                self.on_reject(entry, position)
            return True
        return False

    def _refuse_endless_search(self, skipped: int) -> None:
        last = self.order.stages[-1]
        if self.order.total is not None or skipped % last.num_per_repeat:
            return
        num_samples = sum(source.num_samples for source in last.sources)
        if all(self.ledger.holds(s.name, i) for s in last.sources for i in range(s.num_samples)):
            raise NothingLeftError(
                f"all {num_samples} samples of the endless stage {last.name!r} are "
                f"quarantined ({self.ledger.num_by_reason()}); release some, or check the rules"
            )

    def _load(self, sample_id: SampleId) -> Any:
        try:
            return self._datasets[sample_id.source][sample_id.index]
        except Exception as error:
            raise StreamError(
                f"source {sample_id.source!r}, index {sample_id.index} (stage "
                f"{sample_id.stage!r}): the dataset raised {type(error).__name__}: {error}; "
                "repair the sample, or quarantine it in the ledger"
            ) from error

    def sample(self, position: int) -> Any:
        """Return the sample at a raw position, quarantined or not.

        Raises:
            StreamError: the position lies outside the order, or the dataset failed.
        """
        return self._load(self.order.locate(position))

    def text(self, position: int) -> str | None:
        """Return the sample's text, or None where it has none; raises as `sample` does."""
        return self._to_text(self.sample(position))

    def tokens(self, position: int) -> NDArray[np.integer] | None:
        """Return the sample's tokens (see `tokens_of`), or None; raises as `sample` does."""
        return tokens_of(self.sample(position))

    def state_dict(self) -> dict[str, int]:
        """Return what a rollback rewinds: the watermark, and nothing else."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the watermark; the next batch starts there, under the present ledger.

        Raises:
            StreamError: not exactly `{"position": int}`, or outside the order.
        """
        position = state.get("position")
        if set(state) != {"position"} or type(position) is not int or position < 0:
            raise StreamError(f'state={dict(state)!r}: must be {{"position": int >= 0}}')
        if self.order.total is not None and position > self.order.total:
            raise StreamError(f"position={position}: the order ends at {self.order.total}")
        self._position = position
        self.leftover_samples = 0

    def describe(self) -> dict[str, Any]:
        """Return what identifies the stream, whatever batch size, world size and rank.

        `Order.from_description` reads it, so sample ids can be told without the datasets.
        """
        total = self.order.total
        return {**self.order.describe(), "total": total, "fingerprint": self.order.fingerprint}


_UNREAD: Any = object()


def _default_collate(samples: list[Any]) -> Any:
    try:
        from torch.utils.data import default_collate  # noqa: PLC0415 - works without torch
    except ImportError:
        return samples
    return default_collate(samples)
