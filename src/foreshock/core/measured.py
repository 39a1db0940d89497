"""States that probes have measured, and which of them a recovery is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from foreshock.core.comparison import Measured
from foreshock.core.reading import from_json_number


@dataclass(frozen=True, kw_only=True)
class MeasuredState:
    """A state that was measured, and healthy neighbours from before it.

    Attributes:
        plan: number of the plan that it was measured for.
        snapshot: what it is called.
        step: of the state.
        values: of the probes.
        near_steps: steps of the neighbours, oldest first.
        near: their values.
        trained_from: None if it was taken before the trouble; else the step from which it was
            trained again since, so that it shows no more than that nothing has alarmed.
    """

    plan: int
    snapshot: str
    step: int
    values: Measured
    near_steps: Sequence[int]
    near: Sequence[Measured]
    trained_from: int | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "MeasuredState":
        """The state of a `measured_before` record."""
        trained_from = record.get("trained_from")
        return cls(
            plan=record["plan_id"],
            snapshot=record["snapshot"],
            step=record["at_step"],
            values=_numbers(record["values"]),
            near_steps=tuple(record["neighbour_steps"]),
            near=tuple(_numbers(one) for one in record["neighbours"]),
            trained_from=None if trained_from is None else int(trained_from),
        )


class References(NamedTuple):
    """What a recovery is compared with.

    Attributes:
        nearest: the state that the last rollback began with or trained up to, or one of its
            step from before the trouble.
        proved: the newest older one from before the first trouble, where `nearest` was
            trained since, so that hurt is not compared with hurt; else None.
    """

    nearest: MeasuredState
    proved: MeasuredState | None


def references(known: Sequence[MeasuredState]) -> References | None:
    """Choose from the states measured for an incident, in the order of its plans.

    Before them come those of earlier incidents whose recovery was not verified for the second
    time: what has trained since is proved by their first verification alone, at a distance at
    which harm may still hide. From before the first trouble are the first state of all, and
    those as old or older that were not trained since.

    >>> def state(plan, step, trained_from=None):
    ...     return MeasuredState(plan=plan, snapshot=f"{plan}:{step}", step=step, values={},
    ...         near_steps=(), near=(), trained_from=trained_from)
    >>> def names(found):
    ...     return [one.snapshot for one in found if one is not None]
    >>> names(references([state(1, 180), state(2, 160)]))
    ['2:160']
    >>> names(references([state(1, 100), state(1, 180, trained_from=100)]))
    ['1:180', '1:100']
    >>> names(references([state(1, 180), state(2, 290)]))
    ['2:290', '1:180']
    >>> names(references([state(1, 180), state(2, 100), state(2, 180, trained_from=100)]))
    ['1:180']
    """
    if not known:
        return None
    first, nearest = known[0], known[-1]
    untouched = [one for one in known if one.trained_from is None and one.step <= first.step]
    same = [one for one in untouched if one.step == nearest.step]
    if same:
        return References(same[-1], None)
    older = [one for one in untouched if one.step < nearest.step]
    return References(nearest, max(older, key=lambda one: one.step, default=None))


def _numbers(values: Mapping[str, Sequence[object]]) -> Measured:
    return {name: [from_json_number(item) for item in items] for name, items in values.items()}
