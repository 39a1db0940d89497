"""Whether the model is whole: probes of it now, against healthy states from before."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch

from foreshock.attempts import Attempts
from foreshock.core.comparison import FAMILY_ERROR, Measured, growth_of
from foreshock.core.measured import MeasuredState, references
from foreshock.core.probe import Probe
from foreshock.core.snapshot import SnapshotRef
from foreshock.verification import Comparison, compare, measure

NEIGHBOURS: Final = 6
"""Healthy states before the one compared with, as far as memory holds so many. Six weigh as much
as the prior on their movement (`compare`)."""

_FEWEST: Final = 2

Write = Callable[..., None]


class Wholeness:
    """Measures the model, and keeps what a recovery is compared with.

    What it keeps is never rewound; `apply` rebuilds it from the journal.

    Args:
        attempts: where the run stands, and its states in memory.
        model: what probes measure.
        probes: measured when going back, as the state to compare with.
        write: `(kind, **fields)`; journals a record, which then comes back through `apply`.
    """

    def __init__(
        self,
        attempts: Attempts,
        *,
        model: torch.nn.Module,
        probes: Sequence[Probe],
        write: Write,
    ) -> None:
        self._attempts = attempts
        self._model = model
        self._probes = probes
        self._write = write
        self._known: list[MeasuredState] = []
        self._well_known: MeasuredState | None = None
        self._measure_due: Mapping[str, Any] | None = None

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal, if it is one of these."""
        match record["kind"]:
            case "measure_due":
                self._measure_due = record
            case "measured_before":
                state = MeasuredState.from_record(record)
                self._known.append(state)
                self._measure_due = None
                if len(state.near) >= _FEWEST:
                    self._well_known = state
            case _:
                pass

    def went_back(self, ref: SnapshotRef, asked_step: int, plan: int) -> None:
        """Measure the state gone back to; where that is older than asked for, that one later too.

        The state that is trained again up to the step asked for is nearer, but only what was
        gone back to is from before the trouble.

        Args:
            ref: the state.
            asked_step: the step that the plan asked for.
            plan: number of the plan.
        """
        if not self._probes:
            return
        if ref.health.healthy:
            self._measure_present(ref.id, plan)
        else:
            self._measure_before(ref.step, plan)
        if ref.step < asked_step:
            self._write("measure_due", at_step=asked_step, plan_id=plan, trained_from=ref.step)

    def keep_reference(self, plans: Sequence[int], onset_step: int) -> None:
        """Measure the newest healthy state in memory from before an onset; nothing goes back.

        By the time of the second verification it has left memory. An incident that has such a
        state already, or has gone back to one, keeps it. A process that was resumed from before
        the onset measures the last state before it once that is trained again.

        Args:
            plans: the plans of the incident, by number; the last one is being carried out.
            onset_step: its onset.
        """
        if not self._probes or any(one.plan in plans for one in self._known):
            return
        if self._measure_due is not None and self._measure_due["plan_id"] in plans:
            return
        step = self._attempts.progress.step
        if step < onset_step - 1:
            due = {"at_step": onset_step - 1, "plan_id": plans[-1], "trained_from": step}
            self._write("measure_due", **due)
        else:
            self._measure_before(onset_step, plans[-1])

    def verify(self, plans: Collection[int], onset_step: int) -> dict[str, Any]:
        """Measure the model now against the healthy state from before the onset.

        That is the state that was gone back to, or that `keep_reference` found; else the newest
        one in memory. One that was trained since the trouble began is not proved itself: then
        the model is compared with the newest from before as well, over the longer distance, and
        each comparison has half of the family's error. What fell in either is told.

        Args:
            plans: the plans of the incident by number, and before them those of earlier ones
                whose recovery was not verified for the second time.
            onset_step: its onset.
        """
        if not self._probes:
            return _unprobed("no probes were given")
        now = measure(self._model, self._probes)
        known = [one for one in self._known if one.plan in plans]
        found = references([one for one in known if _items(one.values) == _items(now)])
        if found is None:
            compared = self._harm_since(onset_step, now)
            if compared is None:
                return _unprobed("no earlier state is at hand")
            return _verdict(f"the state before step {onset_step}", compared)
        nearest, proved = found
        if proved is None:
            note = ""
            if nearest.trained_from is not None:
                note = f"{nearest.snapshot} is not proved itself, and nothing older was measured"
            return {**_verdict(nearest.snapshot, self._compared(nearest, now)), "note": note}
        if not proved.near and self._movement_known(proved, now) is None:
            note = f"nothing older tells how far {proved.snapshot} may be left behind"
            return {**_verdict(nearest.snapshot, self._compared(nearest, now)), "note": note}
        near, far = (self._compared(one, now, FAMILY_ERROR / 2) for one in (nearest, proved))
        note = f"{nearest.snapshot} is not proved itself: compared with {proved.snapshot} as well"
        return {**_verdict(nearest.snapshot, near, proved.snapshot, far), "note": note}

    def harm_since(self, onset_step: int) -> list[Comparison] | None:
        """Probe the model now against the newest healthy state in memory from before a step.

        Leaves the state as it is. None where there are no probes or no such state.
        """
        return self._harm_since(onset_step) if self._probes else None

    def _harm_since(self, onset_step: int, now: Measured | None = None) -> list[Comparison] | None:
        """The same, of what was measured of the model now; by default it is probed for it."""
        seen = self._seen(self._healthy_before(onset_step)[-1 - NEIGHBOURS :])
        if not seen:
            return None
        state = _state(seen[-1][0].id, 0, [(ref.step, values) for ref, values in seen])
        now = measure(self._model, self._probes) if now is None else now
        return self._compared(state, now)

    def measure_if_due(self) -> None:
        """Measure the state that is to be compared with, once it has been trained again."""
        step, due = self._attempts.progress.step, self._measure_due
        if due is None or due["at_step"] != step:
            return
        begun = due.get("trained_from")
        name = f"step {step}, trained again" + (f" from step {begun}" if begun is not None else "")
        self._measure_present(name, due["plan_id"], 0 if begun is None else begun)

    def _movement_known(self, state: MeasuredState, now: Measured) -> MeasuredState | None:
        """Where it is known how far healthy training moves: at a state, or at an earlier one.

        None where fewer than two neighbours are known of any.
        """
        known = self._well_known
        if len(state.near) >= _FEWEST:
            return state
        return known if known is not None and _items(known.values) == _items(now) else None

    def _compared(
        self, state: MeasuredState, now: Measured, family_error: float = FAMILY_ERROR
    ) -> list[Comparison]:
        """What was measured of the model now against a state of some step.

        Where fewer than two neighbours of it are known, how far healthy training moves is told
        by the states that an earlier comparison knew: without, B is soon called worse.
        """
        later = self._attempts.progress.step - state.step
        known = self._movement_known(state, now) or state
        growth = growth_of(known.step, known.step + later, known.near_steps)
        own = known is state
        near = state.near if own else [*known.near, known.values]
        return compare(
            state.values, now, near, growth=growth, adjoining=own, family_error=family_error
        )

    def _healthy_before(self, step: int) -> list[SnapshotRef]:
        """Those in memory; where they are too few to tell noise by, some on disk as well."""
        found = _healthy(self._attempts.state.in_memory(), step)
        if (missing := _FEWEST + 1 - len(found)) > 0:
            there = {ref.step for ref in found}
            others = [one for one in _healthy(self._attempts.held(), step) if one.step not in there]
            found = _healthy([*others[-missing:], *found], step)
        return found

    def _seen(self, refs: Sequence[SnapshotRef]) -> list[tuple[SnapshotRef, Measured]]:
        """The probes of earlier states; what is damaged is left out."""
        return self._attempts.look_at(refs, lambda: measure(self._model, self._probes))

    def _measure_before(self, step: int, plan: int) -> None:
        """Measure the newest healthy state from before a step, if one is at hand."""
        if seen := self._seen(self._healthy_before(step)[-1 - NEIGHBOURS :]):
            measured = [(ref.step, values) for ref, values in seen]
            self._measured(_state(seen[-1][0].id, plan, measured))

    def _measure_present(self, name: str, plan: int, trained_from: int | None = None) -> None:
        step, now = self._attempts.progress.step, measure(self._model, self._probes)
        seen = self._seen(self._healthy_before(step)[-NEIGHBOURS:])
        measured = [*((ref.step, values) for ref, values in seen), (step, now)]
        self._measured(_state(name, plan, measured), trained_from)

    def _measured(self, state: MeasuredState, trained_from: int | None = None) -> None:
        """Journal a state to compare with, and its neighbours before it."""
        since = {} if trained_from is None else {"trained_from": trained_from}
        self._write(
            "measured_before",
            plan_id=state.plan,
            snapshot=state.snapshot,
            at_step=state.step,
            values=state.values,
            neighbour_steps=list(state.near_steps),
            neighbours=list(state.near),
            **since,
        )


def _state(name: str, plan: int, measured: Sequence[tuple[int, Measured]]) -> MeasuredState:
    """The last of what was measured, oldest first, and its neighbours before it."""
    step, values = measured[-1]
    return MeasuredState(
        plan=plan,
        snapshot=name,
        step=step,
        values=values,
        near_steps=[one for one, _ in measured[:-1]],
        near=[one for _, one in measured[:-1]],
    )


def _unprobed(why: str) -> dict[str, Any]:
    note = f"quiet again; capability was not probed: {why}"
    return {"passed": True, "probes": [], "note": note}


def _verdict(
    against: str,
    near: Sequence[Comparison],
    also_against: str = "",
    far: Sequence[Comparison] = (),
) -> dict[str, Any]:
    """A verification; of a capability that fell only against the older state, that comparison."""
    worse = {one.probe: one for one in far if not one.passed}
    probes: list[dict[str, Any]] = []
    for one in near:
        if one.passed and one.probe in worse:
            probes.append({**worse[one.probe].to_json(), "against": also_against})
        else:
            probes.append(one.to_json())
    passed = all(one["passed"] for one in probes)
    also = {"also_against": also_against} if also_against else {}
    return {"passed": passed, "against": against, **also, "probes": probes, "note": ""}


def _items(values: Measured) -> dict[str, int]:
    """What was measured: a program may have been given other probes since."""
    return {name: len(items) for name, items in values.items()}


def _healthy(refs: Sequence[SnapshotRef], before_step: int) -> list[SnapshotRef]:
    older = [ref for ref in refs if ref.step < before_step and ref.health.healthy]
    return sorted(older, key=lambda ref: ref.step)
