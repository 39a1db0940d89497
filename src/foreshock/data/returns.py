"""How samples come back: the records that bring them, out of what the ledger holds now."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from foreshock.core.errors import StreamError
from foreshock.data.entry import Key
from foreshock.data.ledger import Ledger
from foreshock.data.reflow import MAX_WATCH_STEPS, Reflow

Told = list[tuple[str, dict[str, Any]]]
"""Kinds of records with their fields, in the order in which they are journalled and taken in."""

GIVEN_BACK_EVERY: Final = 8
"""Samples from one that is given back to the next. No source: our choice, because batches then
stay what they are (one sample in nine), and the clean part of a window is back within eight
times its length."""


def watch_steps_for(every_batches: int) -> int:
    """Steps that a sample is watched for: until the next comes, but at least 16, at most 100.

    No source: our choice, because with 16 or more steps between two samples an alarm can then
    be put down to one of them, and a spike shows within a few steps of its cause.
    """
    return max(16, min(MAX_WATCH_STEPS, every_batches))


def reflowed(
    ledger: Ledger,
    entry_ids: Sequence[str],
    position: int,
    *,
    every_samples: int,
    watch_steps: int,
    ids: Collection[Key] | None = None,
) -> Told:
    """Bring the samples of entries back one by one, one entry after the other.

    One that several of the entries hold comes back once: it is released from all but the first,
    which would else keep each other from bringing it back. A window whose end the run has not
    reached begins behind it, since nothing comes back that was not skipped.

    Args:
        ledger: what holds them.
        entry_ids: the entries.
        position: the watermark of the run.
        every_samples: raw positions from one sample to the next.
        watch_steps: see `Reflow`.
        ids: only these of their samples; None is all.

    Raises:
        StreamError: no entry has one of the ids.
    """
    told: Told = []
    start = position + 1  # what stands before the watermark itself may have been given out
    stops = {one.entry_id: one.window[1] for one in ledger.all_entries if one.window is not None}
    seen: set[Key] = set()
    for entry_id in entry_ids:
        own = None if ids is None else [key for key in ledger.samples(entry_id) if key in ids]
        keys = ledger.to_bring_back(entry_id, start, own)
        if twice := [key for key in keys if key in seen]:
            told.append(released(entry_id, twice, position))
        fresh = [key for key in keys if key not in seen]
        seen.update(fresh)
        if fresh:
            reflow = Reflow(
                entry_id=entry_id,
                start=max(start, stops.get(entry_id, 0)),
                every_samples=every_samples,
                watch_steps=watch_steps,
                ids=None if ids is None else tuple(fresh),
            )
            told.append(("reflow_started", reflow.to_json()))
            start = reflow.start + len(fresh) * every_samples
    return told


def given_back(
    ledger: Ledger, cleared: Mapping[str, Collection[Key]], position: int, total: int | None
) -> Told:
    """Give back what was found not to be needed, so that each sample trains once.

    What lies ahead is released, and trains where it stands. What was skipped comes back beside
    other samples, one every `GIVEN_BACK_EVERY`, closer where the data would end before the last
    of them, and is watched as in any reflow. What is not held any more, or has its slot, or has
    alarmed again, is left as it is.

    Args:
        ledger: what holds them.
        cleared: samples by entry.
        position: the watermark of the run.
        total: raw positions of the order; None without end.

    Raises:
        StreamError: no entry has one of the ids, or it does not name one of the samples.
    """
    told: Told = []
    seen: set[Key] = set()
    skipped: dict[str, list[Key]] = {}
    start = position + 1
    for entry_id, wanted in cleared.items():
        waiting = ledger.coming_back(entry_id)
        keys = [key for key in ledger.to_bring_back(entry_id, start, wanted) if key not in waiting]
        passed = {key for key in keys if ledger.was_skipped(entry_id, key, position)}
        if free := [key for key in keys if key not in passed or key in seen]:
            told.append(released(entry_id, free, position))
        if fresh := [key for key in keys if key in passed and key not in seen]:
            skipped[entry_id] = fresh
            seen.update(fresh)
    num = sum(map(len, skipped.values()))
    every = GIVEN_BACK_EVERY
    if total is not None and num:
        every = max(1, min(every, (total - start) // num))
    for entry_id, keys in skipped.items():
        reflow = Reflow(
            entry_id=entry_id,
            start=start,
            every_samples=every,
            watch_steps=watch_steps_for(1),
            ids=tuple(keys),
        )
        told.append(("reflow_started", reflow.to_json()))
        start += len(keys) * every
    return told


def released(
    entry_id: str, keys: Collection[Key] | None, position: int
) -> tuple[str, dict[str, Any]]:
    """The record that ends the hold of samples of an entry; None is all of them."""
    ids = None if keys is None else [list(key) for key in keys]
    return "released", {"entry_id": entry_id, "ids": ids, "position": position}


def signed(told: Told, request: str) -> Told:
    """The last record says that a request is done: after a crash before it, all is done again.

    What was done already is then not held any more, or is given its slots anew.

    Raises:
        StreamError: there is none.
    """
    if not told:
        raise StreamError("there is nothing to do")
    *first, (kind, fields) = told
    return [*first, (kind, {**fields, "request": request})]
