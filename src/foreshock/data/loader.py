"""A loader of the user's own as a stream: it goes back by the state that it keeps itself."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np

from foreshock.core.errors import ConfigError, StreamError
from foreshock.core.rule import Rule
from foreshock.data.entry import Key
from foreshock.data.journalled import apply_record
from foreshock.data.ledger import Ledger
from foreshock.data.positions import PositionOrder
from foreshock.data.stage import MapDataset
from foreshock.data.stream import Batch

_COUNTS = ("position", "repeat", "in_repeat")


@runtime_checkable
class StatefulLoader(Protocol):
    """An iterable of batches that says where it stands: torchdata's `StatefulDataLoader`."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


@final
class LoaderStream:
    """Batches of a stateful loader, by position: the first is 0, and they count on.

    Which samples stand at a position is the loader's affair and cannot be recomputed, so
    batches are set aside by position, not samples by name. That holds for this loader with
    this batch size and world size only; the samples in a batch that was set aside come again
    in later repeats, and they cannot be brought back. Data rules see no samples here, so
    nothing is judged.

    Going back puts the loader's own state back. Making an iterator draws random numbers;
    where it is made again nothing is drawn, so that what follows is as it was.

    Args:
        loader: the loader; each rank has its own, and all give equally many batches.
        repeats: how often it is gone through; None is without end.

    Attributes:
        order: positions as the ids of batches.
        ledger: the quarantine, by position.
        rules: as a `Stream` has them; not used.
        on_reject: likewise.
        num_unjudged: by rule, how many batches it did not judge.
        leftover_samples: always 0: a loader says nothing of them.
        quarantines_by: what is set aside.

    Raises:
        ConfigError: `repeats` is below 1.
    """

    quarantines_by: ClassVar[str] = "position"

    def __init__(self, loader: StatefulLoader, *, repeats: int | None = 1) -> None:
        if repeats is not None and repeats < 1:
            raise ConfigError(f"repeats={repeats}; must be at least 1, or None")
        self.order = PositionOrder()
        self.ledger = Ledger(self.order)
        self.rules: Sequence[Rule] = ()
        self.on_reject: Any = None
        self.leftover_samples = 0
        self.num_unjudged: Counter[str] = Counter()
        self._loader = loader
        self._num_repeats = repeats
        self._iterator: Iterator[Any] | None = None
        self._is_quiet = True
        self._is_restored = False
        self._position = self._repeat = self._num_in_repeat = 0

    @property
    def position(self) -> int:
        """The number of batches taken from the loader."""
        return self._position

    def next_batch(self) -> Batch:
        """Return the next batch that is not set aside; those before it are read and dropped.

        Raises:
            StopIteration: the loader has no more, in its last repeat.
        """
        while True:
            data, position = self._draw(), self._position
            self._position += 1
            sample_id = self.order.locate(position)
            if not self.ledger.holds(sample_id.source, sample_id.index, position):
                self.num_unjudged.update(rule.name for rule in self.rules)
                return Batch(data, (position,), (sample_id,))

    def _draw(self) -> Any:
        while not self._has_ended:
            try:
                data = next(self._begin())
            except StopIteration:
                begun = self._num_in_repeat > 0
                if not begun and not self._is_restored:
                    break  # it is empty, and would be the next time
                self._iterator, self._is_quiet, self._is_restored = None, False, False
                self._repeat, self._num_in_repeat = self._repeat + begun, 0
            else:
                self._num_in_repeat, self._is_restored = self._num_in_repeat + 1, False
                return data
        raise StopIteration

    @property
    def _has_ended(self) -> bool:
        return self._num_repeats is not None and self._repeat >= self._num_repeats

    def _begin(self) -> Iterator[Any]:
        """The iterator in use; the first one, and one after going back, leave no trace."""
        if self._iterator is None:
            self._iterator = _quietly(self._loader) if self._is_quiet else iter(self._loader)
        return self._iterator

    def sample(self, position: int) -> Any:
        """Refuse: a loader does not give out a batch again.

        Raises:
            StreamError: always.
        """
        raise StreamError(f"position={position}: a loader gives out each batch once")

    def text(self, position: int) -> str | None:
        """Refuse, as `sample` does."""
        return self.sample(position)

    def tokens(self, position: int) -> Any:
        """Refuse, as `sample` does."""
        return self.sample(position)

    def text_of(self, key: Key) -> str | None:
        """Refuse, as `sample` does."""
        return self.sample(key[1])

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal; see `Stream.apply`."""
        apply_record(record, self.ledger, self.order)

    def state_dict(self) -> dict[str, Any]:
        """Return what a rollback rewinds: the count, and the loader's own state."""
        if not self._has_ended:
            self._begin()  # or the loader makes one, and draws random numbers for it
        return {
            "position": self._position,
            "repeat": self._repeat,
            "in_repeat": self._num_in_repeat,
            "loader": self._loader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a state; the next batch comes from there, under the present ledger.

        Raises:
            StreamError: not what `state_dict` gives, or the loader refuses its part.
        """
        counts: list[int] = [state.get(name, -1) for name in _COUNTS]
        known = set(state) == {*_COUNTS, "loader"}
        if not known or any(type(one) is not int or one < 0 for one in counts):
            raise StreamError(f"not the state of a loader: its fields are {sorted(state)!r:.200}")
        try:
            self._loader.load_state_dict(state["loader"])
        except Exception as error:
            raise StreamError(
                f"the {type(self._loader).__name__} did not take its own state back "
                f"({type(error).__name__}: {error!s:.200}); was it made otherwise before?"
            ) from error
        self._iterator, self._is_quiet, self._is_restored = None, True, True
        self._position, self._repeat, self._num_in_repeat = counts

    def describe(self) -> dict[str, Any]:
        """Return what identifies the stream: nothing but how it counts."""
        return {**self.order.describe(), "total": None, "fingerprint": self.order.fingerprint}


def _quietly(loader: StatefulLoader) -> Iterator[Any]:
    """Make an iterator, and leave the global generators as they were."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        import torch  # noqa: PLC0415 - a loader may do without it
    except ImportError:
        torch = None
    tensors = None if torch is None else torch.random.get_rng_state()
    try:
        return iter(loader)
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        if torch is not None and tensors is not None:
            torch.random.set_rng_state(tensors)


def why_not_rewindable(source: Any) -> str:
    """Why a loop with this source of batches cannot go back, and what to do about it."""
    kind = type(source).__name__
    dataset = getattr(source, "dataset", None)
    ways = (
        "foreshock.Stream(dataset, batch_size=…, seed=0, collate=…) gives batches of the same "
        "dataset in an order that can be recomputed"
    )
    if isinstance(dataset, MapDataset) and hasattr(source, "batch_sampler"):
        return (
            f"the {kind} keeps no state, and its sampler's order is not known before it comes: "
            f"foreshock.Stream(loader.dataset, batch_size={_batch_size(source)}, seed=0, "
            "collate=loader.collate_fn) takes its place, or torchdata's StatefulDataLoader with "
            "the same arguments"
        )
    if dataset is not None:
        return (
            f"the {kind} is over a {type(dataset).__name__}, a stream without state, so that what "
            "it gave cannot be given again: index the data (a memory-mapped file, "
            f"datasets.Dataset) and {ways}; or give the dataset state_dict and load_state_dict, "
            "and use torchdata's StatefulDataLoader"
        )
    return (
        f"a {kind} has no state_dict and load_state_dict, so that what it gave cannot be given "
        f"again: {ways}; a loader with these two methods will do as well"
    )


def _batch_size(source: Any) -> str:
    size = getattr(source, "batch_size", None)
    return str(size) if isinstance(size, int) else "…"
