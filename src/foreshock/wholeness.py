"""Whether the model is whole: probes of it now, against healthy states from before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from foreshock.attempts import Attempts
from foreshock.core.probe import Probe
from foreshock.core.snapshot import SnapshotRef
from foreshock.verification import Comparison, compare, measure

_NEIGHBOURS = 2

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
        self._before: Mapping[str, Any] | None = None
        self._measure_due: int | None = None

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal, if it is one of these."""
        match record["kind"]:
            case "measure_due":
                self._measure_due = record["at_step"]
            case "measured_before":
                self._before, self._measure_due = record, None
            case _:
                pass

    def went_back(self, ref: SnapshotRef, asked_step: int) -> None:
        """Measure the state gone back to; or, where that is older than asked for, later."""
        if ref.step < asked_step and self._probes:
            self._write("measure_due", at_step=asked_step)
        else:
            self._measure_before(ref.id)

    def verify(self, *, went_back: bool, onset_step: int) -> dict[str, Any]:
        """Measure the model now against the healthy state from before the onset.

        That is the state that was gone back to, or else the newest one in memory.
        """
        if went_back and self._before is not None and self._probes:
            against = self._before["snapshot"]
            after = measure(self._model, self._probes)
            compared = compare(self._before["values"], after, self._before["neighbours"])
        else:
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
        refs = self._healthy_before(onset_step)[-1 - _NEIGHBOURS :]
        seen = self._attempts.look_at(refs, lambda: measure(self._model, self._probes))
        if not seen:
            return None
        now = measure(self._model, self._probes)
        return compare(seen[-1], now, seen[:-1])

    def measure_if_due(self) -> None:
        """Measure the state that was to be gone back to, once it has been trained again."""
        step = self._attempts.progress.step
        if self._measure_due == step:
            self._measure_before(f"step {step}, trained again")

    def _healthy_before(self, step: int) -> list[SnapshotRef]:
        held = self._attempts.state.in_memory()
        older = [ref for ref in held if ref.step < step and ref.health.healthy]
        return sorted(older, key=lambda ref: ref.step)

    def _measure_before(self, snapshot_id: str) -> None:
        if not self._probes:
            return
        now = measure(self._model, self._probes)
        older = self._healthy_before(self._attempts.progress.step)[-_NEIGHBOURS:]
        neighbours = self._attempts.look_at(older, lambda: measure(self._model, self._probes))
        self._write("measured_before", snapshot=snapshot_id, values=now, neighbours=neighbours)
