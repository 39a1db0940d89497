"""Whether the model is whole: probes of it now, against healthy states from before."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch

from foreshock.attempts import Attempts
from foreshock.core.comparison import Measured, growth_of
from foreshock.core.probe import Probe
from foreshock.core.reading import from_json_number
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
        self._before: _Known | None = None
        self._well_known: _Known | None = None
        self._measure_due: Mapping[str, Any] | None = None

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal, if it is one of these."""
        match record["kind"]:
            case "measure_due":
                self._measure_due = record
            case "measured_before":
                self._before, self._measure_due = _Known(record), None
                if len(self._before.near) >= _FEWEST:
                    self._well_known = self._before
            case _:
                pass

    def went_back(self, ref: SnapshotRef, asked_step: int, plan: int) -> None:
        """Measure the state gone back to; or, where that is older than asked for, later.

        Args:
            ref: the state.
            asked_step: the step that the plan asked for.
            plan: number of the plan.
        """
        if ref.step < asked_step and self._probes:
            self._write("measure_due", at_step=asked_step, plan_id=plan)
        else:
            self._measure_present(ref.id, plan)

    def keep_reference(self, plans: Sequence[int], onset_step: int) -> None:
        """Measure the newest healthy state in memory from before an onset; nothing goes back.

        By the time of the second verification it has left memory. An incident that has such a
        state already, or has gone back to one, keeps it. A process that was resumed from before
        the onset measures the last state before it once that is trained again.

        Args:
            plans: the plans of the incident, by number; the last one is being carried out.
            onset_step: its onset.
        """
        if not self._probes or self._known_of(plans) is not None:
            return
        if self._measure_due is not None and self._measure_due["plan_id"] in plans:
            return
        if self._attempts.progress.step < onset_step - 1:
            self._write("measure_due", at_step=onset_step - 1, plan_id=plans[-1])
        elif seen := self._seen(self._healthy_before(onset_step)[-1 - NEIGHBOURS :]):
            steps = [ref.step for ref, _ in seen]
            self._measured(seen[-1][0].id, plans[-1], steps, [values for _, values in seen])

    def verify(self, plans: Collection[int], onset_step: int) -> dict[str, Any]:
        """Measure the model now against the healthy state from before the onset.

        That is the state that was gone back to, or that `keep_reference` found; else the newest
        one in memory.

        Args:
            plans: the plans of the incident, by number.
            onset_step: its onset.
        """
        before = self._known_of(plans)
        against, compared = "", None
        if before is not None and self._probes:
            against = before.snapshot
            compared = self._compared(before.step, before.values, before.near_steps, before.near)
        if compared is None:
            against, compared = f"the state before step {onset_step}", self.harm_since(onset_step)
        if compared is None:
            note = "no alarm since; capability was not probed: "
            note += "no earlier state is at hand" if self._probes else "no probes were given"
            return {"passed": True, "probes": [], "note": note}
        return {
            "passed": all(one.passed for one in compared),
            "against": against,
            "probes": [one.to_json() for one in compared],
            "note": "",
        }

    def harm_since(self, onset_step: int) -> list[Comparison] | None:
        """Probe the model now against the newest healthy state in memory from before a step.

        Leaves the state as it is. None where there are no probes or no such state.
        """
        if not self._probes:
            return None
        seen = self._seen(self._healthy_before(onset_step)[-1 - NEIGHBOURS :])
        if not seen:
            return None
        steps, values = [ref.step for ref, _ in seen], [one for _, one in seen]
        return self._compared(steps[-1], values[-1], steps[:-1], values[:-1])

    def measure_if_due(self) -> None:
        """Measure the state that is to be compared with, once it has been trained again."""
        step, due = self._attempts.progress.step, self._measure_due
        if due is not None and due["at_step"] == step:
            self._measure_present(f"step {step}, trained again", due["plan_id"])

    def _known_of(self, plans: Collection[int]) -> "_Known | None":
        before = self._before
        return before if before is not None and before.plan in plans else None

    def _compared(
        self, step: int, before: Measured, near_steps: Sequence[int], near: Sequence[Measured]
    ) -> list[Comparison] | None:
        """The model now against a state of some step; None if other probes measured that.

        Where fewer than two neighbours of it are known, how far healthy training moves is told
        by the states that an earlier comparison knew: without, B is soon called worse.
        """
        now, later = measure(self._model, self._probes), self._attempts.progress.step - step
        if _items(now) != _items(before):
            return None
        known = self._well_known
        if len(near) >= _FEWEST or known is None or _items(known.values) != _items(now):
            growth = growth_of(step, step + later, near_steps)
            return compare(before, now, near, growth=growth)
        growth = growth_of(known.step, known.step + later, known.near_steps)
        return compare(before, now, [*known.near, known.values], growth=growth, adjoining=False)

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

    def _measure_present(self, snapshot_id: str, plan: int) -> None:
        if not self._probes:
            return
        step, now = self._attempts.progress.step, measure(self._model, self._probes)
        seen = self._seen(self._healthy_before(step)[-NEIGHBOURS:])
        steps = [*(ref.step for ref, _ in seen), step]
        self._measured(snapshot_id, plan, steps, [*(values for _, values in seen), now])

    def _measured(
        self, snapshot_id: str, plan: int, steps: Sequence[int], values: Sequence[Measured]
    ) -> None:
        """Journal a state to compare with, which comes last, and its neighbours before it."""
        self._write(
            "measured_before",
            plan_id=plan,
            snapshot=snapshot_id,
            at_step=steps[-1],
            values=values[-1],
            neighbour_steps=steps[:-1],
            neighbours=values[:-1],
        )


class _Known:
    """A state that was measured, and its neighbours, as the journal holds them."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.plan: int = record["plan_id"]
        self.snapshot: str = record["snapshot"]
        self.step: int = record["at_step"]
        self.values = _numbers(record["values"])
        self.near_steps: Sequence[int] = record["neighbour_steps"]
        self.near = [_numbers(one) for one in record["neighbours"]]


def _numbers(values: Mapping[str, Sequence[object]]) -> Measured:
    return {name: [from_json_number(item) for item in items] for name, items in values.items()}


def _items(values: Measured) -> dict[str, int]:
    """What was measured: a program may have been given other probes since."""
    return {name: len(items) for name, items in values.items()}


def _healthy(refs: Sequence[SnapshotRef], before_step: int) -> list[SnapshotRef]:
    older = [ref for ref in refs if ref.step < before_step and ref.health.healthy]
    return sorted(older, key=lambda ref: ref.step)
