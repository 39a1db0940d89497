"""An order of which nothing is known but the count: the batches of a foreign loader."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, final

from foreshock.core.errors import StreamError
from foreshock.data.order import Order, SampleId

FORMAT: Final = "foreshock-positions-1"
STAGE: Final = "loader"
SOURCE: Final = "batch"


@final
class PositionOrder:
    """Position p is the p-th batch of a loader, whatever stands in it.

    Each stands once, so that what is set aside stays so and never comes again elsewhere.

    >>> PositionOrder().locate(7)
    SampleId(stage='loader', source='batch', index=7)
    """

    total: None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of batches by source: none is known."""
        return {}

    def locate(self, position: int) -> SampleId:
        """Return the batch at a position.

        Raises:
            StreamError: it is below 0.
        """
        if position < 0:
            raise StreamError(f"position={position}: positions begin at 0")
        return SampleId(STAGE, SOURCE, position)

    def last_visit(self, source: str, index: int, before: int) -> int | None:
        """Return where a batch stands, if that lies below `before`."""
        return index if source == SOURCE and 0 <= index < before else None

    def describe(self) -> dict[str, Any]:
        """Return what identifies it."""
        return {"format": FORMAT}

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits."""
        text = json.dumps(self.describe())
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def order_from(description: Mapping[str, Any]) -> Order | PositionOrder:
    """Rebuild the order that a run's `stream` describes.

    Raises:
        StreamError: it is of no known format, or malformed.
    """
    if description.get("format") == FORMAT:
        return PositionOrder()
    return Order.from_description(description)
