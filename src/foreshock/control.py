"""The run as actions see it: overrides, quarantine, rollback, pause, halt."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from foreshock.attempts import Attempts
from foreshock.core.action import Capability
from foreshock.core.errors import ForeshockError, JournalError
from foreshock.core.override import (
    ClipLimit,
    EmbeddingFactor,
    GateLimit,
    LoweredBeta2,
    LRCap,
    LRFactor,
    MomentReset,
    Override,
    RaisedEpsilon,
    Tuning,
    WeightNoise,
)
from foreshock.core.probe import Probe
from foreshock.core.reading import from_json_text
from foreshock.core.signal import Site
from foreshock.data.ledger import LedgerEntry
from foreshock.data.stream import Stream
from foreshock.durable import Disk, write_file
from foreshock.handover import HANDOVER, handover_text
from foreshock.journal import Journal
from foreshock.overrides import Overrides
from foreshock.pausing import RESUME_NOW, FromFirst, Pausing, of_itself
from foreshock.state_edits import make_edit, places_of, seed_of
from foreshock.verification import Comparison
from foreshock.wholeness import Wholeness

_DAMAGE = (ForeshockError, AttributeError, LookupError, TypeError, ValueError)


class Control:
    """Carries out actions on a run. Each is journalled so that a resume rebuilds it.

    What it keeps is never rewound: overrides, the ledger, the order of the data, the
    measurements that a recovery is verified against. Each holds from a step or a position
    on, so that replaying the steps before it stays exact. An action that is carried out twice,
    which is what happens when the process dies in between, is carried out once.

    Args:
        attempts: where the run stands, and how it goes back.
        journal: where everything is recorded.
        capabilities: what the loop can do.
        model: what probes measure.
        probes: measured when going back, as the state to compare with.
        stream: whose ledger is kept; None for a foreign loader.
        disk: where the handover note is written.
        site: the model as signals see it, for edits of the state; None where none is ordered.
        clock: seconds, as the journal's.
        sleep: waits for so many seconds, in a pause.
        from_first: what the first rank says, as `Ranks.from_first`; by default there is one.
        asked_to_stop: whether this process is to stop; a pause then ends.

    Raises:
        JournalError: a record of an override is not one that a run writes.
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
        site: Site | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        from_first: FromFirst = of_itself,
        asked_to_stop: Callable[[], object] = lambda: False,
    ) -> None:
        self.halt_note: str | None = None
        self.capabilities = capabilities
        self.overrides = Overrides()
        """What holds at which step."""
        self._attempts = attempts
        self._journal = journal
        self._stream = stream
        self._disk = disk
        self._site = site
        self._clock = clock
        self._pausing = Pausing(
            disk,
            journal.run_dir,
            sleep=sleep,
            from_first=from_first,
            asked_to_stop=asked_to_stop,
        )
        self._whole = Wholeness(attempts, model=model, probes=probes, write=self._write)
        self._reordered: set[str] = set()
        self._pauses: dict[str, tuple[float, bool]] = {}
        self._edited: set[tuple[int, str]] = set()
        self._plan_id = 0
        self._action = 0
        for line, record in enumerate(journal.records, start=1):
            self._rebuild(record, line)

    def begin(self, plan_id: int, action: int) -> None:
        """Name the action that is carried out next, so that doing it twice is doing it once."""
        self._plan_id, self._action = plan_id, action

    # ---- what holds at a step -------------------------------------------------------

    def gate_limit(self, step: int) -> float:
        """Largest gradient norm that the gate commits at a step."""
        return self.overrides.gate_limit(step)

    def lr_factor(self, step: int) -> float:
        """Factor on the learning rate of a step."""
        return self.overrides.lr_factor(step)

    def tuning(self, step: int) -> Tuning:
        """What else is changed of the update of a step."""
        return self.overrides.tuning(step)

    def begin_step(self, step: int) -> None:
        """Make the edits that a step begins with; call it once its first batch is there.

        Not before: the snapshot of the step before must not hold them, since whoever resumes
        from it makes them again. In one attempt each is made once.
        """
        attempt = self._attempts.progress.attempt
        for key, edit in self.overrides.edits(step).items():
            if (attempt, key) in self._edited:
                continue
            self._edited.add((attempt, key))
            assert self._site is not None
            self._record("state_edited", durable=False, key=key, what=make_edit(self._site, edit))

    # ---- TrainingControl ------------------------------------------------------------

    def limit_gate(self, limit: float, first_step: int, last_step: int) -> str:
        self._order(GateLimit(limit=limit, first_step=first_step, last_step=last_step))
        return f"updates above {limit:.4g} are skipped from step {first_step} to {last_step}"

    def scale_lr(
        self, factor: float, first_step: int, hold_steps: int | None = None, ramp_steps: int = 0
    ) -> str:
        order = LRFactor(
            factor=factor, first_step=first_step, hold_steps=hold_steps, ramp_steps=ramp_steps
        )
        self._order(order)
        return f"learning rate multiplied by {factor:g} {order.span}"

    def cap_lr(
        self, max_lr: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        order = LRCap(
            max_lr=max_lr, first_step=first_step, hold_steps=hold_steps, ramp_steps=ramp_steps
        )
        self._order(order)
        return f"learning rate at most {max_lr:.4g} {order.span}"

    def tighten_clip(
        self, max_norm: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        order = ClipLimit(
            max_norm=max_norm, first_step=first_step, hold_steps=hold_steps, ramp_steps=ramp_steps
        )
        self._order(order)
        return f"gradients clipped to {max_norm:g} {order.span}"

    def raise_epsilon(
        self, factor: float, least: float, first_step: int, hold_steps: int | None
    ) -> str:
        order = RaisedEpsilon(
            factor=factor, least=least, first_step=first_step, hold_steps=hold_steps
        )
        self._order(order)
        return f"eps multiplied by {factor:g} and at least {least:g} {order.span}"

    def lower_beta2(self, value: float, first_step: int, hold_steps: int | None) -> str:
        order = LoweredBeta2(value=value, first_step=first_step, hold_steps=hold_steps)
        self._order(order)
        return f"beta2 at most {value:g} {order.span}"

    def shrink_embedding_gradients(
        self, factor: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        order = EmbeddingFactor(
            factor=factor, first_step=first_step, hold_steps=hold_steps, ramp_steps=ramp_steps
        )
        self._order(order)
        return f"gradients of embeddings multiplied by {factor:g} {order.span}"

    def reset_moments(self, first_step: int, groups: Sequence[str], restart_count: bool) -> str:
        assert self._site is not None
        order = MomentReset(
            first_step=first_step, groups=tuple(groups), restart_count=restart_count
        )
        which = ", ".join(groups) or "all module groups"
        num = len(places_of(self._site, groups))
        if not num:
            return f"nothing to reset: no module group is called {which}"
        self._order(order)
        return f"moments of {num} parameters ({which}) are zero when step {first_step} begins"

    def perturb_weights(self, relative_std: float, first_step: int) -> str:
        seed = seed_of(self._key())
        self._order(WeightNoise(relative_std=relative_std, first_step=first_step, seed=seed))
        return f"noise of {relative_std:g} of each tensor's RMS when step {first_step} begins"

    def perturb_order(self, position: int) -> str:
        assert self._stream is not None
        total = self._stream.order.total
        if total is not None and position >= total:
            return f"nothing to reorder: the data ends at position {total}"
        if self._key() not in self._reordered:
            self._write("data_reordered", position=position, seed=seed_of(self._key()))
        return f"the data comes in another order from position {position} on"

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
        self._whole.went_back(restored.ref, step, self._plan_id)
        text = f"back from step {came_from} to {restored.ref.step}"
        if restored.ref.id != snapshot_id:
            text += f" ({snapshot_id} is gone; {restored.ref.step} to {step} are trained again)"
        return f"{text}; digest of the restored state equal: {restored.digest_equal}"

    def pause(self, reason: str, timeout_secs: float) -> str:
        key = self._key()
        if key not in self._pauses:
            self._pausing.clear()  # one that was there before the pause is no answer to it
            self._write("paused", reason=reason, timeout_secs=timeout_secs)
            self._journal.warn(
                f"paused after step {self._attempts.progress.step}: {reason}. "
                f"`touch {self._journal.run_dir / RESUME_NOW}` lifts it; without that the run "
                f"is halted after {timeout_secs:.0f} seconds"
            )
        since, lifted = self._pauses[key]
        if not lifted:
            waited = self._pausing.wait(
                lambda: timeout_secs - min(max(0.0, self._clock() - since), timeout_secs)
            )
            if waited is None:
                step = self._attempts.progress.step
                return self.halt(
                    f"Halted after step {step}: nobody lifted the pause within "
                    f"{timeout_secs:.0f} seconds. It was for this: {reason}."
                )
            self._write("pause_lifted", waited_secs=waited)
        self._pausing.clear()
        return f"paused and lifted by {RESUME_NOW}: {reason}"

    def halt(self, note: str) -> str:
        self._write("halted", note=note)
        path = self._journal.run_dir / HANDOVER
        progress = self._attempts.progress
        try:
            text = handover_text(
                note,
                run_dir=self._journal.run_dir,
                step=progress.step,
                attempt=progress.attempt,
                records=self._journal.records,
                in_force=self.overrides.in_force(progress.step + 1),
                num_quarantined=self._stream.ledger.num_samples if self._stream is not None else 0,
                snapshots=self._attempts.refs(),
            )
            write_file(self._disk, path, [text.encode()])
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

    def keep_reference(self, plans: Sequence[int], onset_step: int) -> None:
        """See `Wholeness.keep_reference`."""
        self._whole.keep_reference(plans, onset_step)

    def verify(self, plans: Collection[int], onset_step: int) -> dict[str, Any]:
        """See `Wholeness.verify`."""
        return self._whole.verify(plans, onset_step)

    def harm_since(self, onset_step: int) -> list[Comparison] | None:
        """See `Wholeness.harm_since`."""
        return self._whole.harm_since(onset_step)

    def measure_if_due(self) -> None:
        """See `Wholeness.measure_if_due`."""
        self._whole.measure_if_due()

    # ---- journal --------------------------------------------------------------------

    def _key(self) -> str:
        return f"plan{self._plan_id}/{self._action}"

    def _order(self, override: Override) -> None:
        """Journal an override, unless this action has ordered just that before."""
        if not self.overrides.knows(self._key(), override):
            self._write(override.kind, **override.to_json())

    def _write(self, kind: str, **fields: Any) -> None:
        self._apply(self._record(kind, key=self._key(), **fields))

    def _record(self, kind: str, **fields: Any) -> dict[str, Any]:
        progress = self._attempts.progress
        return self._journal.write(kind, attempt=progress.attempt, step=progress.step, **fields)

    def _rebuild(self, record: dict[str, Any], line: int) -> None:
        try:
            self._apply(record)
        except _DAMAGE as error:
            raise JournalError(
                f"{self._journal.run_dir}/decisions.jsonl, line {line} ({record['kind']!s:.40}) is "
                f"not what a run writes ({type(error).__name__}: {error!s:.200}): restore the "
                "file from a copy, or use a new run directory."
            ) from error

    def _apply(self, record: dict[str, Any]) -> None:
        self.overrides.add_record(record)
        self._whole.apply(record)
        if self._stream is not None:
            self._stream.apply(record)
        match record["kind"]:
            case "data_reordered":
                self._reordered.add(record["key"])
            case "paused":
                self._pauses[from_json_text(record["key"])] = (float(record["time"]), False)
            case "pause_lifted":
                since, _ = self._pauses[record["key"]]
                self._pauses[record["key"]] = (since, True)
            case "halted":
                self.halt_note = record["note"]
            case "run_halted":
                self.halt_note = None  # it was handed over, and a person resumes it
            case _:
                pass
