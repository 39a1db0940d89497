"""The run as actions see it: overrides, quarantine, rollback, halt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foreshock.attempts import Attempts
from foreshock.core.action import Capability
from foreshock.core.probe import Probe
from foreshock.core.snapshot import SnapshotRef
from foreshock.data.ledger import LedgerEntry
from foreshock.data.stream import Stream
from foreshock.durable import Disk, write_file
from foreshock.journal import Journal
from foreshock.verification import Comparison, compare, measure

HANDOVER = "handover.md"
_NEIGHBOURS = 2


@dataclass(frozen=True)
class _Gate:
    limit: float
    first_step: int
    last_step: int


class Control:
    """Carries out actions on a run. Each is journalled so that a resume rebuilds it.

    What it keeps is never rewound: gate limits, learning-rate factors, the ledger, the
    measurements that a recovery is verified against. Each holds from a step or a position
    on, so that replaying the steps before it stays exact.

    Args:
        attempts: where the run stands, and how it goes back.
        journal: where everything is recorded.
        capabilities: what the loop can do.
        model: what probes measure.
        probes: measured when going back, as the state to compare with.
        stream: whose ledger is kept; None for a foreign loader.
        disk: where the handover note is written.
    """

    def __init__(
        self,
        attempts: Attempts,
        journal: Journal,
        *,
        capabilities: frozenset[Capability],
        model: torch.nn.Module,
        probes: Sequence[Probe],
        stream: Stream | None,
        disk: Disk,
    ) -> None:
        self.halt_note: str | None = None
        self.capabilities = capabilities
        self._attempts = attempts
        self._journal = journal
        self._model = model
        self._probes = probes
        self._stream = stream
        self._disk = disk
        self._gates: list[_Gate] = []
        self._lr_factors: dict[str, tuple[int, float]] = {}
        self._before: dict[str, Any] | None = None
        self._measure_due: int | None = None
        self._plan_id = 0
        self._action = 0
        for record in journal.records:
            self._apply(record)

    def begin(self, plan_id: int, action: int) -> None:
        """Name the action that is carried out next, so that doing it twice is doing it once."""
        self._plan_id, self._action = plan_id, action

    # ---- what holds at a step -------------------------------------------------------

    def gate_limit(self, step: int) -> float:
        """Largest gradient norm that the gate commits at a step."""
        limits = [gate.limit for gate in self._gates if gate.first_step <= step <= gate.last_step]
        return min(limits, default=math.inf)

    def lr_factor(self, step: int) -> float:
        """Factor on the learning rate of a step."""
        return math.prod(factor for first, factor in self._lr_factors.values() if step >= first)

    # ---- TrainingControl ------------------------------------------------------------

    def limit_gate(self, limit: float, first_step: int, last_step: int) -> str:
        self._write("gate_limited", limit=limit, first_step=first_step, last_step=last_step)
        return f"updates above {limit:.4g} are skipped from step {first_step} to {last_step}"

    def scale_lr(self, factor: float, first_step: int) -> str:
        self._write("lr_scaled", factor=factor, first_step=first_step)
        return f"learning rate multiplied by {factor:g} from step {first_step} on"

    def quarantine(self, start: int, stop: int, reason: str) -> str:
        assert self._stream is not None
        total = self._stream.order.total
        stop = stop if total is None else min(stop, total)
        if stop <= start:
            return "nothing to set aside"
        before = self._stream.ledger.num_samples
        entry = LedgerEntry(entry_id=self._key(), reason=reason, window=(start, stop))
        self._write("quarantined", entry=entry.to_json())
        added = self._stream.ledger.num_samples - before
        return f"{added} samples set aside (positions {start} to {stop - 1})"

    def rollback(self, snapshot_id: str, step: int) -> str:
        came_from = self._attempts.progress.step
        restored = self._attempts.go_back(snapshot_id=snapshot_id, at_most_step=step)
        if restored.ref.step < step and self._probes:
            self._write("measure_due", at_step=step)
        else:
            self._measure_before(restored.ref.id)
        text = f"back from step {came_from} to {restored.ref.step}"
        if restored.ref.id != snapshot_id:
            text += f" ({snapshot_id} is gone; {restored.ref.step} to {step} are trained again)"
        return f"{text}; digest of the restored state equal: {restored.digest_equal}"

    def halt(self, note: str) -> str:
        self.halt_note = note
        self._write("halted", note=note)
        path: Path = self._journal.run_dir / HANDOVER
        try:
            write_file(self._disk, path, [note.encode() + b"\n"])
        except OSError as error:
            self._journal.warn(f"{path} cannot be written ({error.strerror or error})")
        return f"halted; the handover note is in {HANDOVER}"

    # ---- data -----------------------------------------------------------------------

    def rejected(self, entry: LedgerEntry, position: int) -> None:
        """A data rule refused a sample; the ledger holds it already."""
        progress = self._attempts.progress
        self._journal.write(
            "rejected",
            attempt=progress.attempt,
            step=progress.step + 1,
            durable=False,
            position=position,
            entry=entry.to_json(),
        )

    # ---- verification ---------------------------------------------------------------

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

    # ---- journal --------------------------------------------------------------------

    def _key(self) -> str:
        return f"plan{self._plan_id}/{self._action}"

    def _write(self, kind: str, **fields: Any) -> None:
        progress = self._attempts.progress
        record = self._journal.write(
            kind, attempt=progress.attempt, step=progress.step, key=self._key(), **fields
        )
        self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        match record["kind"]:
            case "gate_limited":
                gate = _Gate(record["limit"], record["first_step"], record["last_step"])
                if gate not in self._gates:
                    self._gates.append(gate)
            case "lr_scaled":
                self._lr_factors[record["key"]] = (record["first_step"], record["factor"])
            case "quarantined" | "rejected" if self._stream is not None:
                self._stream.ledger.add(LedgerEntry.from_json(record["entry"]))
            case "measure_due":
                self._measure_due = record["at_step"]
            case "measured_before":
                self._before, self._measure_due = record, None
            case "halted":
                self.halt_note = record["note"]
            case "run_halted":
                self.halt_note = None  # it was handed over, and a person resumes it
            case _:
                pass
