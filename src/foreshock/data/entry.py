"""One decision to set data aside: named samples, or a window of positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foreshock.core.errors import StreamError
from foreshock.core.reading import from_json_text, from_json_whole

Key = tuple[str, int]
"""(source, index): a sample's name whatever the stage, repeat, batch size or world size."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One decision to set data aside: named samples, or a window of positions.

    Args:
        entry_id: names the decision; the same id is the same decision.
        reason: in words, with the value and the limit.
        ids: the samples as (source, index); empty when `window` is given.
        window: raw positions [start, stop) of the run's order.
        incident: the incident it belongs to, if any.
        rule: the data rule that decided, if any.
        since: raw position from which on named samples are held; a window holds from its
            start on.
        names: stable ids of `ids`, one each, where the data has them; else empty. A sample is
            then found again by this id, also where its row has moved.

    Raises:
        StreamError: neither or both of `ids` and `window`, an empty or negative window, or
            another number of names than of ids.

    >>> entry = LedgerEntry(entry_id="3/1", reason="loss spike", window=(64, 96), incident=3)
    >>> LedgerEntry.from_json(entry.to_json()) == entry
    True
    """

    entry_id: str
    reason: str
    ids: tuple[Key, ...] = ()
    window: tuple[int, int] | None = None
    incident: int | None = None
    rule: str | None = None
    since: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.ids) == (self.window is not None):
            raise StreamError(
                f"entry {self.entry_id!r}: ids={self.ids[:3]}, window={self.window}; give one"
            )
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise StreamError(
                f"entry {self.entry_id!r}: window={self.window}; needs 0 <= start < stop"
            )
        if self.names and len(self.names) != len(self.ids):
            raise StreamError(
                f"entry {self.entry_id!r}: {len(self.names)} names for {len(self.ids)} ids; give "
                "one each, or none"
            )

    @property
    def first_position(self) -> int:
        """The raw position from which on it holds its samples."""
        return self.since if self.window is None else self.window[0]

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON-able values."""
        return {
            "entry_id": self.entry_id,
            "reason": self.reason,
            "ids": [list(key) for key in self.ids],
            "window": None if self.window is None else list(self.window),
            "incident": self.incident,
            "rule": self.rule,
            "since": self.since,
            "names": list(self.names),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "LedgerEntry":
        """Rebuild an entry from `to_json()`; `since` and `names` may be missing.

        Raises:
            StreamError: a field is missing, unknown or malformed.
        """
        try:
            ids = keys_from_json(record["ids"])
            window = record["window"]
            if window is not None:
                start, stop = window
                window = (from_json_whole(start), from_json_whole(stop))
            for name in ("entry_id", "reason", *(("rule",) if record.get("rule") else ())):
                from_json_text(record[name])
            if record.get("incident") is not None:
                from_json_whole(record["incident"])
            if from_json_whole(record.get("since", 0)) < 0:
                raise ValueError(f"since={record['since']}: below 0")
            names = tuple(from_json_text(name) for name in record.get("names", ()))
            return cls(**{**record, "ids": ids, "window": window, "names": names})
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(f"not a ledger entry: {record!r:.200} ({error!s:.200})") from error


def keys_from_json(values: Any) -> tuple[Key, ...]:
    """Sample names from JSON.

    Raises:
        TypeError, ValueError: not a list of [source, index >= 0].
    """
    if not isinstance(values, list | tuple):
        raise TypeError(f"ids are {values!r:.80}, not a list")
    keys = [(from_json_text(source), from_json_whole(index)) for source, index in values]
    if any(index < 0 for _, index in keys):
        raise ValueError("an index is below 0")
    return tuple(keys)
