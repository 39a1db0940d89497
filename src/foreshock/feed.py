"""Where a loop's batches come from: a stream that can go back, or a loader that cannot."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from foreshock.data.loader import LoaderStream, StatefulLoader, why_not_rewindable
from foreshock.data.reflow import Returning
from foreshock.data.stream import Batch, Stream


class Feed:
    """Gives out batches, and remembers the stream positions of the step in progress.

    Args:
        source: a `Stream`; a loader with `state_dict` and `load_state_dict`, which becomes a
            `LoaderStream`; or any iterable of batches, which cannot go back.
    """

    def __init__(self, source: Stream | LoaderStream | StatefulLoader | Iterable[Any]) -> None:
        self.stream: Any = None
        """The `Stream` or `LoaderStream`; None for a loader that cannot go back."""
        self.why_not_rewindable = ""
        """Why this source cannot go back, and what to do about it; empty if it can."""
        self._loader: Iterator[Any] | None = None
        if isinstance(source, Stream | LoaderStream):
            self.stream = source
        elif isinstance(source, StatefulLoader):
            self.stream = LoaderStream(source)
        else:
            self.why_not_rewindable = why_not_rewindable(source)
            self._loader = iter(source)
        self._positions: list[int] = []
        self._last: Batch | None = None
        self._losses: dict[Returning, tuple[float, float]] = {}

    def next_batch(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: there is none.
        """
        if self.stream is None:
            assert self._loader is not None
            return next(self._loader)
        batch = self._last = self.stream.next_batch()
        self._positions += batch.positions
        return batch.data

    def take_positions(self) -> list[int]:
        """The positions given out since this was last asked, rising; none for a loader."""
        taken, self._positions = sorted(self._positions), []
        return taken

    @property
    def wants_losses(self) -> bool:
        """Whether a sample of this rank's part of the last batch was brought back."""
        return bool(self._own_returned())

    def note_losses(self, losses: Sequence[float]) -> None:
        """Note what each sample of this rank's part of the last batch lost, `[B]`.

        Where their number is not that of the samples, nothing is noted.
        """
        own = self._own_returned()
        assert self._last is not None
        if not own or len(losses) != len(self._last.positions[self._last.own]):
            return
        finite = [float(one) for one in losses if math.isfinite(one)]
        middle = median(finite) if finite else math.nan
        for place, item in own:
            self._losses[item] = (float(losses[place]), middle)

    def loss_of(self, entry_id: str, key: tuple[str, int], slot: int) -> tuple[float, float] | None:
        """The loss of a sample that was brought back, and the median beside it; once.

        None where it was on another rank, gave no loss, or came back in an earlier process.
        """
        for item in self._losses:
            if (item.entry_id, item.key, item.slot) == (entry_id, key, slot):
                return self._losses.pop(item)
        return None

    def _own_returned(self) -> list[tuple[int, Returning]]:
        """Samples of this rank's part that were brought back, by their place in it."""
        if self._last is None or not self._last.returned:
            return []
        places = {position: n for n, position in enumerate(self._last.positions[self._last.own])}
        returned = self._last.returned
        return [(places[one.address], one) for one in returned if one.address in places]
