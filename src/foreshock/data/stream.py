"""The resumable stream: batches as a function of (seed, watermark, ledger)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError, StreamError
from foreshock.core.rule import Rule
from foreshock.data.entry import Key
from foreshock.data.journalled import apply_record, reorder
from foreshock.data.judging import Judgement, Judging
from foreshock.data.ledger import Ledger, LedgerEntry
from foreshock.data.loading import Sources
from foreshock.data.order import Order, SampleId
from foreshock.data.reflow import Returning
from foreshock.data.sample import text_in, tokens_of
from foreshock.data.stage import MapDataset, Stage, as_stages

__all__ = ["Batch", "MapDataset", "NothingLeftError", "Stage", "Stream"]


class NothingLeftError(StreamError):
    """Every sample of an endless stream is in quarantine."""


class Batch(NamedTuple):
    """A batch: this rank's share of the data, and the names of the whole global batch.

    Attributes:
        data: this rank's samples, collated.
        positions: raw positions of the global batch, rising. A sample that was brought back
            is named by the position at which it stood and was skipped.
        ids: the samples at these positions.
        returned: samples of the batch that were brought back; see `Ledger.start_reflow`.
        own: the part of `positions` that is this rank's.
    """

    data: Any
    positions: tuple[int, ...]
    ids: tuple[SampleId, ...]
    returned: tuple[Returning, ...] = ()
    own: slice = slice(0)


@dataclass(slots=True)
class _Candidate:
    """A sample that is next in the order, and where the stream stands after it."""

    address: int
    slot: int
    id: SampleId
    after: tuple[int, int]
    returning: Returning | None = None
    sample: Any = None
    is_read: bool = False

    @property
    def key(self) -> Key:
        return (self.id.source, self.id.index)


class Stream:
    """Yields the next samples that are neither quarantined nor rejected, in a fixed order.

    The order of `order.locate(0), order.locate(1), …` is fixed by the stages and the seed.
    A batch is the next `batch_size` admitted positions from the watermark `position` on, in
    rising order, and rank r gets the r-th of `world_size` contiguous shares. So the sequence
    of samples is the same for every batch size and world size. Samples that come back from
    quarantine stand before positions of their own, beside what stands there anyway. Each rank
    runs a stream of its own and they need not talk: they agree as long as watermark, ledger
    and rules agree.

    Online rules judge each sample before it trains. One that fails goes into the ledger
    with its reason, from its position on, is reported through `on_reject`, and the batch is
    filled from the positions after it. A rejection that was released from the ledger stands
    released: the same rule does not reject that sample again. With rules every rank loads the
    whole global batch; without them only its own share.

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
        quarantines_by: what is set aside: samples by their names.

    Raises:
        ConfigError: a batch size, rank, weight or stage outside its limits.
        StreamError: `stages` is nothing that can be read from.

    >>> stream = Stream(list(range(10, 16)), batch_size=4, seed=0, collate=sorted)
    >>> first, second = stream.next_batch(), stream.next_batch()
    >>> sorted(first.data + second.data), stream.position
    ([10, 11, 12, 13, 14, 15], 6)
    """

    quarantines_by: ClassVar[str] = "sample"

    def __init__(
        self,
        stages: Stage | Sequence[Stage] | Mapping[str, MapDataset] | MapDataset,
        *,
        batch_size: int,
        seed: int,
        collate: Callable[[list[Any]], Any] | None = None,
        to_text: Callable[[Any], str | None] | None = None,
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
        given = as_stages(stages)
        self._sources = Sources(given)
        self.order = Order([stage.order() for stage in given], seed)
        self.ledger = Ledger(self.order, self._sources.find)
        self.rules: Sequence[Rule] = ()
        self.on_reject: Callable[[LedgerEntry, int], None] | None = None
        self.leftover_samples = 0
        self.num_unjudged: Counter[str] = Counter()
        self._position = self._num_returned = 0
        self._judging: tuple[Sequence[Rule], Judging] | None = None

    @property
    def position(self) -> int:
        """The watermark: the raw position after the last one whose sample was given out."""
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
        used = admitted[: share * self.world_size]
        after = used[-1].after
        used.sort(key=lambda one: one.address)
        own = slice(share * self.rank, share * (self.rank + 1))
        self._read(used[own])
        batch = Batch(
            data=self._collate([one.sample for one in used[own]]),
            positions=tuple(one.address for one in used),
            ids=tuple(one.id for one in used),
            returned=tuple(one.returning for one in used if one.returning is not None),
            own=own,
        )
        self._position, self._num_returned = after
        return batch

    def _admit(self) -> list[_Candidate]:
        """The next samples that are neither held nor rejected, in the order of the run."""
        admitted: list[_Candidate] = []
        place = (self._position, self._num_returned)
        while len(admitted) < self.batch_size:
            found, place = self._candidates(self.batch_size - len(admitted), place)
            if not found:
                break
            if self.rules:
                self._read(found)
                said = self._judges().judge([one.sample for one in found])
                found = [
                    one
                    for one, all_of in zip(found, said, strict=True)
                    if self._passes(one, all_of)
                ]
            admitted += found
        return admitted

    def _judges(self) -> Judging:
        """The rules, with what they learned; anew where others were set."""
        if self._judging is None or self._judging[0] is not self.rules:
            judging = Judging(self.rules, self.order, self._sources.load_many, self._to_text)
            self._judging = (self.rules, judging)
        return self._judging[1]

    def _candidates(
        self, num: int, place: tuple[int, int]
    ) -> tuple[list[_Candidate], tuple[int, int]]:
        """Up to `num` samples that are not held, from a place on, and the place after them.

        A place is a raw position, and how many of the samples that come back before it have
        been given out.
        """
        found: list[_Candidate] = []
        (position, given), skipped = place, 0
        while len(found) < num and position != self.order.total:
            before = self.ledger.returning(position)
            while given < len(before) and len(found) < num:
                item, given = before[given], given + 1
                if item is not None:
                    sample_id = self.order.locate(item.address)
                    after = (position, given)
                    found.append(_Candidate(item.address, position, sample_id, after, item))
            if len(found) == num:
                break
            sample_id = self.order.locate(position)
            if self.ledger.holds(sample_id.source, sample_id.index, position):
                skipped += 1
                self._refuse_endless_search(skipped)
            else:
                found.append(_Candidate(position, position, sample_id, (position + 1, 0)))
                skipped = 0
            position, given = position + 1, 0
        return found, (position, given)

    def _read(self, wanted: Sequence[_Candidate]) -> None:
        """Read what has not been read yet."""
        unread = [one for one in wanted if not one.is_read]
        for one, sample in zip(
            unread, self._sources.load_many([o.key for o in unread]), strict=True
        ):
            one.sample, one.is_read = sample, True

    def _passes(self, one: _Candidate, said: Sequence[Judgement]) -> bool:
        """Whether no rule refuses the sample, and none has just done so for the same one."""
        if one.returning is None and self.ledger.holds(*one.key, one.slot):
            return False
        if one.returning is not None and one.returning not in self.ledger.returning(one.slot):
            return False
        for rule, reason, is_judged in said:
            if not is_judged:
                self.num_unjudged[rule] += 1
                continue
            entry_id = f"rule/{rule}/{one.key[0]}/{one.key[1]}"
            if reason is None or entry_id in self.ledger:
                continue  # what was once decided of it, and taken back, is not decided again
            name = self._sources.name_of(one.key, one.sample)
            entry = LedgerEntry(
                entry_id=entry_id,
                reason=reason,
                ids=(one.key,),
                rule=rule,
                since=one.slot,
                names=() if name is None else (name,),
            )
            self.ledger.add(entry)
            if self.on_reject is not None:
                self.on_reject(entry, one.slot)
            return False
        return True

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

    def reorder_from(self, position: int, seed: int) -> None:
        """Give out what lies from `position` on in another order; see `Order.reorder_from`.

        What was set aside stays so, wherever it stands from now on. The same call again
        changes nothing.

        Raises:
            StreamError: the position lies outside the order.
        """
        reorder(self.ledger, self.order, position, seed)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal; what says nothing of the data passes by.

        Raises:
            StreamError: the record is malformed, or contradicts what came before it.
        """
        apply_record(record, self.ledger, self.order)

    def sample_of(self, key: Key) -> Any:
        """Return a sample by its name, quarantined or not.

        Raises:
            StreamError: there is none, or the dataset failed.
        """
        if not 0 <= key[1] < self.order.sizes.get(key[0], 0):
            raise StreamError(f"sample {key}: the sources are {self.order.sizes}")
        return self._sources.load(key)

    def text_of(self, key: Key) -> str | None:
        """Return a sample's text by its name, or None where it has none."""
        return self._to_text(self.sample_of(key))

    def sample(self, position: int) -> Any:
        """Return the sample at a raw position, quarantined or not.

        Raises:
            StreamError: the position lies outside the order, or the dataset failed.
        """
        found = self.order.locate(position)
        return self._sources.load((found.source, found.index))

    def data_at(self, positions: Sequence[int]) -> Any:
        """Return the samples at raw positions, collated, quarantined or not.

        The watermark stays where it is, and rules are not asked.

        Raises:
            StreamError: a position lies outside the order, or a dataset failed.
        """
        ids = [self.order.locate(position) for position in positions]
        return self._collate(self._sources.load_many([(one.source, one.index) for one in ids]))

    def text(self, position: int) -> str | None:
        """Return the sample's text, or None where it has none; raises as `sample` does."""
        return self._to_text(self.sample(position))

    def tokens(self, position: int) -> NDArray[np.integer] | None:
        """Return the sample's tokens (see `tokens_of`), or None; raises as `sample` does."""
        return tokens_of(self.sample(position))

    def state_dict(self) -> dict[str, int]:
        """Return what a rollback rewinds: where the stream stands, and nothing else.

        `returned` is there only between a sample that was brought back and the position
        that it stands before.
        """
        state = {"position": self._position}
        return {**state, "returned": self._num_returned} if self._num_returned else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the watermark; the next batch starts there, under the present ledger.

        Raises:
            StreamError: not what `state_dict` gives, or outside the order.
        """
        position: int = state.get("position", -1)
        returned: int = state.get("returned", 0)
        counts = (position, returned)
        strange = set(state) - {"position", "returned"}
        if strange or any(type(one) is not int or one < 0 for one in counts):
            raise StreamError(f'state={dict(state)!r:.200}: must be {{"position": int >= 0}}')
        if self.order.total is not None and position > self.order.total:
            raise StreamError(f"position={position}: the order ends at {self.order.total}")
        self._position, self._num_returned = position, returned
        self.leftover_samples = 0

    def describe(self) -> dict[str, Any]:
        """Return what identifies the stream, whatever batch size, world size and rank.

        `Order.from_description` reads it, so sample ids can be told without the datasets.
        """
        total = self.order.total
        return {**self.order.describe(), "total": total, "fingerprint": self.order.fingerprint}


def _default_collate(samples: list[Any]) -> Any:
    try:
        from torch.utils.data import default_collate  # noqa: PLC0415 - works without torch
    except ImportError:
        return samples
    return default_collate(samples)
