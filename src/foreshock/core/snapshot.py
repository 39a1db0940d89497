"""Which snapshot to go back to: the newest that is healthy and older than the onset."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from foreshock.core.errors import SnapshotError
from foreshock.core.reading import from_json_number, from_json_whole, json_number


@dataclass(frozen=True, kw_only=True)
class Health:
    """What was known of a run's health when a snapshot was taken.

    Attributes:
        concerns: why it should not be gone back to; empty if healthy.
        doubts: what speaks for an older one that has none, if there is one not much older.
        figures: the readings behind that, by name.
    """

    concerns: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against going back to it."""
        return not self.concerns

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        figures = {name: json_number(value) for name, value in self.figures.items()}
        plain = {"concerns": list(self.concerns), "figures": figures}
        return plain | ({"doubts": list(self.doubts)} if self.doubts else {})

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Health":
        """Undo `to_json`."""
        figures = {name: from_json_number(value) for name, value in fields["figures"].items()}
        doubts = tuple(str(one) for one in fields.get("doubts", ()))
        return cls(concerns=tuple(fields["concerns"]), doubts=doubts, figures=figures)


@dataclass(frozen=True, kw_only=True)
class SnapshotRef:
    """The label of a snapshot: everything but its content.

    Attributes:
        id: unique in the run.
        attempt: attempt in which it was taken.
        step: number of the last step it contains (0 = before the first).
        position: watermark of the stream.
        durable: whether it is on disk.
        digest: digest of the logical state.
        health: what was known when it was taken.
        trained_from: None where it is at hand; else the step of the newest older one that is,
            from which its state would have to be trained again. Of the moment: not kept.
    """

    id: str
    attempt: int
    step: int
    position: int
    durable: bool
    digest: str
    health: Health
    trained_from: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        fields = {**asdict(self), "health": self.health.to_json()}
        del fields["trained_from"]
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "SnapshotRef":
        """Undo `to_json`.

        Raises:
            SnapshotError: a field is missing or has the wrong type.
        """
        try:
            return cls(
                id=str(fields["id"]),
                attempt=_count(fields["attempt"]),
                step=_count(fields["step"]),
                position=_count(fields["position"]),
                durable=bool(fields["durable"]),
                digest=str(fields["digest"]),
                health=Health.from_json(fields["health"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"a snapshot's label is damaged: {error!r}") from error


def _count(value: object) -> int:
    found = from_json_whole(value)
    if found < 0:
        raise ValueError(f"{found} is below 0")
    return found


_DOUBT_REACH = 3
_NEAR_TRIES = 3


class Judged(NamedTuple):
    """A snapshot and why it was passed over (empty for the one that was chosen)."""

    ref: SnapshotRef
    objection: str


class Choice(NamedTuple):
    """The chosen target, or None, the judgement on each candidate, newest first, and why it."""

    target: SnapshotRef | None
    judged: tuple[Judged, ...]
    why: str = ""


def in_lineage(ref: SnapshotRef, rollbacks: Sequence[tuple[int, int]]) -> bool:
    """Whether a snapshot still belongs to the run's past after its rollbacks.

    Args:
        ref: the snapshot.
        rollbacks: (attempt that began, step gone back to) of every rollback and resume.

    A snapshot was undone if time later went back to before it.

    >>> ref = SnapshotRef(id="a", attempt=1, step=40, position=0, durable=True, digest="",
    ...     health=Health())
    >>> in_lineage(ref, [(2, 40)]), in_lineage(ref, [(2, 30)])
    (True, False)
    """
    return all(attempt <= ref.attempt or ref.step <= step for attempt, step in rollbacks)


def choose_target(candidates: Sequence[SnapshotRef], onset_step: int, older_by: int = 0) -> Choice:
    """Choose the newest healthy snapshot from before the onset; not simply the latest.

    Args:
        candidates: the snapshots of the run's lineage.
        onset_step: first step at which a signal left its healthy range. A snapshot of
            step `onset_step - 1` is the last that can be clean.
        older_by: how many recoveries from here have failed. The first three next targets are
            one snapshot older each; from then on each is at least twice as far from the onset
            as the one before, up the anchors, since a little further back is often not
            enough. Where there is none so old, it is the oldest. The run's start comes last:
            before it, everything else that is healthy and older.

    One whose trends are in doubt gives way to the newest that has no doubts, unless that costs
    too much: it may lie at most three times as far from the onset, and going back to it may
    train at most three times as many steps again. The two differ where a snapshot is not at
    hand, since its state is then trained again from an older one: a mere doubt costs less than
    hundreds of steps. The run's start has no doubts because nothing was measured, and no other
    gives way to it. If a step is both in memory and on disk, memory is chosen: it is faster.

    Reference: OPT-175B log book: go back to a checkpoint whose loss scale is at least 1
    and whose activation norm falls, not to the latest. The numbers: our choice.
    """
    newest_first = sorted(candidates, key=lambda ref: (-ref.step, ref.durable, ref.id))
    judged: list[Judged] = []
    fit: list[SnapshotRef] = []
    for ref in newest_first:
        if ref.step >= onset_step:
            objection = f"taken at step {ref.step}, not before the onset at step {onset_step}"
        elif not ref.health.healthy:
            objection = "; ".join(ref.health.concerns)
        else:
            objection = ""
            if all(ref.step != other.step for other in fit):
                fit.append(ref)
        judged.append(Judged(ref, objection))
    if not fit:
        return Choice(None, tuple(judged))
    targets = _targets(fit, onset_step, older_by)
    told = tuple(_against_targets(one, targets, onset_step) for one in judged)
    return Choice(targets[-1], told, _why(fit, targets, onset_step))


def steps_undone(ref: SnapshotRef, onset_step: int) -> int:
    """Steps that are trained again, up to the onset, where a snapshot is gone back to."""
    return onset_step - (ref.step if ref.trained_from is None else ref.trained_from)


def _targets(fit: Sequence[SnapshotRef], onset_step: int, older_by: int) -> list[SnapshotRef]:
    """The target of the first recovery, of the second, and so on; never empty."""
    near = _DOUBT_REACH * (onset_step - fit[0].step)
    cheap = _DOUBT_REACH * steps_undone(fit[0], onset_step)
    sure = [
        ref
        for ref in _sure(fit)
        if onset_step - ref.step <= near and steps_undone(ref, onset_step) <= cheap
    ]
    targets = [sure[0] if sure else fit[0]]
    for tries in range(older_by):
        last = targets[-1]
        older = [ref for ref in fit if ref.step < last.step]
        if not older:
            break
        older = [ref for ref in older if ref.step] or older
        away = (2 if tries >= _NEAR_TRIES else 1) * (onset_step - last.step)
        targets.append(next((ref for ref in older if onset_step - ref.step >= away), older[-1]))
    return targets


def _sure(fit: Sequence[SnapshotRef]) -> list[SnapshotRef]:
    """Those that were looked at, and of which nothing was in doubt."""
    return [ref for ref in fit if not ref.health.doubts and ref.step]


def _why(fit: Sequence[SnapshotRef], targets: Sequence[SnapshotRef], onset_step: int) -> str:
    """Why the last of the targets is one, for a person."""
    target, number = targets[-1], len(targets) - 1
    if number:
        return f"older than the {number} from which recoveries have failed"
    if target.health.doubts:
        sure = _sure(fit)
        doubts = "; ".join(target.health.doubts)
        if not sure:
            return f"in doubt ({doubts}), but none from before the onset is free of doubt"
        ours, theirs = (steps_undone(ref, onset_step) for ref in (target, sure[0]))
        costs = f"would undo {theirs} steps instead of {ours}"
        if theirs <= _DOUBT_REACH * ours:
            ours, theirs = (onset_step - ref.step for ref in (target, sure[0]))
            costs = f"lies {theirs} steps before the onset instead of {ours}"
        much = f"more than {_DOUBT_REACH} times as many"
        return f"in doubt ({doubts}), but {sure[0].id}, the newest free of doubt, {costs}, {much}"
    if target is not fit[0]:
        return f"the newest free of doubt, at most {_DOUBT_REACH} times as far from the onset"
    return "the newest healthy one from before the onset"


def _against_targets(one: Judged, targets: Sequence[SnapshotRef], onset_step: int) -> Judged:
    target = targets[-1]
    if one.objection or one.ref is target:
        return one
    if any(one.ref.step == failed.step for failed in targets[:-1]):
        return Judged(one.ref, "fit, but a recovery from here has failed before")
    if one.ref.step > targets[0].step:
        doubts = "; ".join(one.ref.health.doubts)
        why = doubts or "its trends are no better"
        return Judged(one.ref, f"fit, but {why}, and {targets[0].id} is free of doubt")
    if one.ref.step > target.step:
        return Judged(one.ref, "fit, but too near to one from which a recovery has failed")
    if one.ref.step < target.step:
        ours, theirs = (steps_undone(ref, onset_step) for ref in (target, one.ref))
        better = f"no better than {target.id}, which was chosen"
        return Judged(one.ref, f"fit, but {better}: it would undo {theirs} steps instead of {ours}")
    return Judged(one.ref, f"fit, but no better than {target.id}, which was chosen")
