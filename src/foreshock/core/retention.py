"""Which durable snapshots are due, and which are kept: pure decisions, by steps and minutes.

Kept are the run's start, the newest few, the newest healthy one, the newest one free of doubt,
and healthy *anchors* spaced further and further back: a rollback of a few steps is often not
enough, and a state from long ago is worth keeping only where there is none of about its age.

No source for the spacing: our choice. It is the thinning of checkpoints by age that online
checkpointing uses (each gap at most a fixed multiple of the age at its younger end), which
keeps O(log T) of T snapshots; here a gap may also be `anchor_steps` long, since the newest few
cover what is younger.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foreshock.core.snapshot import SnapshotRef


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What is kept of the durable snapshots.

    Args:
        newest: how many of the newest are kept, healthy or not.
        anchor_steps: steps between anchors that are allowed at any age.
        anchor_factor: an anchor may be up to this many times as old as the next younger one
            that is kept. Lower keeps more of them.
        budget_bytes: size that all of them may have; 0 for no limit.
    """

    newest: int = 5
    anchor_steps: int = 500
    anchor_factor: float = 4.0
    budget_bytes: int = 0


class Stored(NamedTuple):
    """A durable snapshot and its size."""

    ref: SnapshotRef
    size_bytes: int


class Fate(NamedTuple):
    """What becomes of a snapshot, and why."""

    ref: SnapshotRef
    kept: bool
    why: str


def why_due(step: int, disk_steps: int, secs_at_risk: float, disk_minutes: float) -> str:
    """Why a durable snapshot is due after a step: "steps", "minutes", or "" where it is not.

    Args:
        step: steps taken.
        disk_steps: steps between durable snapshots.
        secs_at_risk: seconds since the newest durable one was taken, or the process began.
        disk_minutes: minutes of progress that may be at risk; 0 for any.

    >>> why_due(200, 100, 3.0, 30.0), why_due(201, 100, 1800.0, 30.0), why_due(201, 100, 9.0, 30.0)
    ('steps', 'minutes', '')
    """
    if step % disk_steps == 0:
        return "steps"
    return "minutes" if disk_minutes and secs_at_risk >= 60 * disk_minutes else ""


def retain(
    stored: Sequence[Stored],
    rule: Retention,
    *,
    alive: Callable[[SnapshotRef], bool] = lambda _: True,
    room_bytes: int | None = None,
    needed: Collection[str] = (),
) -> list[Fate]:
    """Decide what is kept, newest first; the same for the same set, in whatever order.

    Args:
        stored: every durable snapshot that can be read.
        rule: what is to be kept.
        alive: whether a snapshot belongs to the run's past; what a rollback has undone is
            dropped, since it would outlive those that count, its step being higher.
        room_bytes: size that all may have now, where the disk has no more room; the lower of
            it and the budget holds.
        needed: ids that an incident may still go back to; kept where there is room.

    The run's start, the newest one and the newest healthy one are never dropped, whatever the
    budget. Beyond it those go first whose absence leaves the smallest gap for their age.
    """
    ordered = sorted(stored, key=lambda one: (one.ref.step, one.ref.attempt, one.ref.id))
    living = [one for one in ordered if alive(one.ref)]
    reasons = _essential(living)
    for one in living[-rule.newest :] if rule.newest else []:
        reasons.setdefault(one.ref.id, f"one of the newest {rule.newest}")
    sure = [one for one in living if one.ref.health.healthy and not one.ref.health.doubts]
    if sure:
        reasons.setdefault(sure[-1].ref.id, "the newest that is free of doubt")
    for one in living:
        if one.ref.id in needed:
            reasons.setdefault(one.ref.id, "an incident may go back to it again")
    for ref in _anchors(living, reasons, rule):
        reasons[ref.id] = "a healthy anchor"
    limits = [limit for limit in (rule.budget_bytes or None, room_bytes) if limit is not None]
    squeezed = _over(living, reasons, min(limits)) if limits else set[str]()
    fates: list[Fate] = []
    for one in reversed(ordered):
        name = one.ref.id
        if not alive(one.ref):
            fates.append(Fate(one.ref, False, "undone by a rollback"))
        elif name in squeezed:
            fates.append(Fate(one.ref, False, "beyond the room that there is"))
        elif name in reasons:
            fates.append(Fate(one.ref, True, reasons[name]))
        else:
            ill = "" if one.ref.health.healthy else "not healthy, and "
            fates.append(Fate(one.ref, False, f"{ill}no longer among the newest {rule.newest}"))
    return fates


def _essential(living: Sequence[Stored]) -> dict[str, str]:
    """What is never dropped, by id, and why."""
    if not living:
        return {}
    reasons = {living[0].ref.id: "the run's start", living[-1].ref.id: "the newest"}
    healthy = [one.ref.id for one in living if one.ref.health.healthy]
    if healthy:
        reasons.setdefault(healthy[-1], "the newest that is healthy")
    return reasons


def _anchors(living: Sequence[Stored], kept: dict[str, str], rule: Retention) -> list[SnapshotRef]:
    """Healthy ones besides those kept, from young to old, each as old as the rule allows."""
    if not living:
        return []
    now = living[-1].ref.step
    healthy = [one.ref for one in living if one.ref.health.healthy]
    oldest_first = [ref for ref in healthy if ref.id in kept and ref.id != living[0].ref.id]
    if not oldest_first:
        return []
    anchors: list[SnapshotRef] = []
    young = oldest_first[0]
    while older := [ref for ref in healthy if ref.step < young.step]:
        age = now - young.step
        reach = max(rule.anchor_factor * age, age + rule.anchor_steps)
        fit = [ref for ref in older if now - ref.step <= reach]
        young = fit[0] if fit else older[-1]
        if young.id not in kept:
            anchors.append(young)
    return anchors


def _over(living: Sequence[Stored], reasons: dict[str, str], limit: int) -> set[str]:
    """Ids of what must go besides, so that the rest fits into a limit, as far as it can."""
    essential = set(_essential(living))
    kept = [one for one in living if one.ref.id in reasons]
    dropped: set[str] = set()
    now = living[-1].ref.step if living else 0

    def gap(place: int) -> tuple[float, int]:
        older, younger = kept[place - 1].ref, kept[place + 1].ref
        return (now - older.step + 1) / (now - younger.step + 1), kept[place].ref.step

    while sum(one.size_bytes for one in kept) > limit:
        places = [i for i, one in enumerate(kept) if one.ref.id not in essential]
        if not places:
            break
        dropped.add(kept.pop(min(places, key=gap)).ref.id)
    return dropped
