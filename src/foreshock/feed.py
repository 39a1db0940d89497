"""Where a loop's batches come from: a stream that can go back, or a loader that cannot."""

from collections.abc import Iterable, Iterator
from typing import Any

from foreshock.data.stream import Stream


class Feed:
    """Gives out batches, and remembers the stream positions of the step in progress.

    Args:
        source: a `Stream`, or any iterable of batches.
    """

    def __init__(self, source: Stream | Iterable[Any]) -> None:
        self.stream: Stream | None = None
        """The stream; None for a loader of the loop's own."""
        self._loader: Iterator[Any] | None = None
        if isinstance(source, Stream):
            self.stream = source
        else:
            self._loader = iter(source)
        self._positions: list[int] = []

    def next_batch(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: there is none.
        """
        if self.stream is None:
            assert self._loader is not None
            return next(self._loader)
        batch = self.stream.next_batch()
        self._positions += batch.positions
        return batch.data

    def take_positions(self) -> list[int]:
        """The positions given out since this was last asked; none for a loader."""
        taken, self._positions = self._positions, []
        return taken
