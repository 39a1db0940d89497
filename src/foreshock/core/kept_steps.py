"""What of each attempt still counts, once later attempts have gone back behind it."""

from collections.abc import Iterable, Mapping
from typing import Any

from foreshock.core.reading import from_json_whole


def attempt_starts(records: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """The step that each attempt went on from, as the decisions journal says."""
    starts: dict[int, int] = {}
    for record in records:
        if record.get("kind") != "attempt_started":
            continue
        try:
            attempt, step = (from_json_whole(record.get(key)) for key in ("attempt", "step"))
        except ValueError:
            continue
        starts[attempt] = step
    return starts


def kept_to(starts: Mapping[int, int]) -> dict[int, int | None]:
    """The last step of each attempt that no later one undid; None where nothing was undone.

    An attempt that starts at step 100 undoes what every earlier one measured after step 100,
    also if it measured nothing itself.

    >>> kept_to({1: 0, 2: 100, 3: 60})
    {3: None, 2: 60, 1: 60}
    """
    found: dict[int, int | None] = {}
    least: int | None = None
    for attempt in sorted(starts, reverse=True):
        found[attempt] = least
        start = starts[attempt]
        least = start if least is None else min(least, start)
    return found
