"""The course of a run: what happens before each batch, and how the run ends."""

import weakref
from typing import Any, NoReturn

from foreshock.assembly import Pieces
from foreshock.core.errors import ConfigError, Halted, Stopped
from foreshock.core.incident import IncidentBook
from foreshock.core.starts import STARTED
from foreshock.data.stream import NothingLeftError
from foreshock.pausing import PauseInterrupted
from foreshock.snapshots.parts import clone_tree
from foreshock.stop_signals import StopSignals, name_of


class Course:
    """Gives out the batches of a run; before each step decisions are carried out.

    Args:
        pieces: what the run is made of.
        stop: what the system asks this process to do.
        max_steps: stop after this many optimizer steps; None for no end.
        grace_secs: how long the system waits before it kills a run that it has asked to stop.

    Raises:
        ConfigError: `grace_secs` is not above 0.
    """

    def __init__(
        self, pieces: Pieces, stop: StopSignals, max_steps: int | None, grace_secs: float
    ) -> None:
        if not grace_secs > 0:
            raise ConfigError(f"grace_secs is {grace_secs}; it must be above 0")
        self.started = False
        """Whether the first batch was asked for."""
        self._pieces = pieces
        self._stop_signals = stop
        self._max_steps = max_steps
        self._grace_secs = grace_secs
        self._ended = False
        self.stopped: str | None = None
        """By which signal and where, if the system stopped the run."""
        weakref.finalize(self, stop.close).atexit = False
        self._resumed_random: Any = None

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._pieces.attempts.progress.step

    @property
    def attempt(self) -> int:
        """Rises at every rollback and every resume."""
        return self._pieces.attempts.progress.attempt

    @property
    def halt_note(self) -> str | None:
        """The handover note, if the policy stopped the run."""
        return self._pieces.control.halt_note

    @property
    def book(self) -> IncidentBook:
        """Every incident of the run."""
        return self._pieces.supervisor.book

    @property
    def num_quarantined(self) -> int:
        """Distinct samples set aside."""
        stream = self._pieces.feed.stream
        return stream.ledger.num_samples if stream is not None else 0

    def resume(self, from_snapshot: str | None) -> None:
        """Take up the run as it is on disk."""
        self._pieces.recovery.resume(from_snapshot)
        self._resumed_random = clone_tree(self._pieces.random.capture())

    def between_steps(self) -> None:
        """Carry out what was decided, verify, take what snapshot is due; or end.

        Raises:
            StopIteration: the run is at its end.
            Halted: the policy stopped it.
            Stopped: the system did.
        """
        pieces = self._pieces
        if self.stopped is not None:
            raise Stopped(self.stopped)
        if not self.started:
            self._start()
        asked = self.stop_signal
        while True:
            ending = self._max_steps is not None and self.step >= self._max_steps
            due = pieces.attempts.snapshot_is_due()
            if ending or due or asked:
                self.absorb(drain=True)
            pieces.upkeep.settle()
            try:
                carried_out = pieces.recovery.carry_out_plan()
            except PauseInterrupted:
                heard = pieces.ranks.from_first("the signal", lambda: self._stop_signals.heard)
                self._stop(heard)
            if carried_out:
                pieces.stepping.forget()
                pieces.feed.take_positions()
                if self.halt_note is not None:
                    break
            elif not (pieces.recovery.probe_if_in_doubt() or pieces.recovery.verify_if_settled()):
                break
        if self.halt_note is not None or ending:
            self._end()
        if asked:
            self._stop(asked)
        pieces.upkeep.take_in()
        if due:
            pieces.attempts.take_snapshot(self.book)
            pieces.unison.check("snapshot")
        pieces.control.measure_if_due()

    def fetch(self) -> Any:
        """The next batch. Where the data ends, the last steps are read: they may send us back.

        Raises:
            StopIteration: the data or the run is at its end.
            Halted: the policy stopped the run.
        """
        while True:
            try:
                return self._pieces.feed.next_batch()
            except (StopIteration, NothingLeftError) as end:
                if self._ended:
                    self._end()
                self._drop_incomplete_step()
                self.absorb(drain=True)
                waiting = self.book.unfinished_plan is not None
                if not waiting and not self._pieces.recovery.verify_if_settled():
                    self._pieces.recovery.end_of_data(end, self.num_quarantined)
                    self._end()
                self.between_steps()

    @property
    def stop_signal(self) -> int:
        """By which signal the run is to stop before the next step; 0 for none.

        On several ranks it is what all have heard of, in the readings of a step.
        """
        pieces = self._pieces
        return self._stop_signals.heard if pieces.ranks.size == 1 else pieces.intake.stop_signal

    def close(self) -> None:
        """Let signals of the system do what they did before."""
        stop = self._stop_signals
        stop.close()
        if stop.heard and self.stopped is None:
            stop.pass_on(stop.heard)

    def absorb(self, *, drain: bool) -> None:
        """Take in what was measured; all of it if `drain`, else up to the lag."""
        self._pieces.intake.absorb(self.attempt, drain=drain)

    def _start(self) -> None:
        pieces = self._pieces
        self.started = True
        if pieces.feed.stream is not None:  # else whoever can save the run is to be asked
            self._stop_signals.listen()
        if self.attempt == 0:
            pieces.attempts.begin()
            pieces.journal.write(
                "run_started",
                attempt=self.attempt,
                step=0,
                capabilities=sorted(pieces.capabilities),
                not_watched_yet=pieces.monitor.not_ready(),
            )
            pieces.attempts.take_snapshot(self.book, durable=True, required=True)
            pieces.unison.check("snapshot")
        elif self._resumed_random is not None:
            # Building loaders and iterators in between may have drawn random numbers.
            pieces.random.restore(self._resumed_random)
        self._write(STARTED, durable=False, **pieces.start)

    def _drop_incomplete_step(self) -> None:
        """The data ended between two micro-steps: too little is left to make a step of."""
        stepping = self._pieces.stepping
        positions = self._pieces.feed.take_positions()
        if not stepping.micro_step and not positions:
            return
        stepping.forget()
        self._pieces.journal.write(
            "step_incomplete", attempt=self.attempt, step=self.step, positions=positions
        )

    def _end(self) -> NoReturn:
        if not self._ended:
            self._ended = True
            self._record_the_end()
            self._stop_signals.close()
            if self._stop_signals.heard:  # in the last step: there is nothing to stop any more
                self._stop_signals.pass_on(self._stop_signals.heard)
        if self.halt_note is not None:
            self._pieces.notices.halted(self.halt_note)
            raise Halted(self.halt_note)  # ending quietly would pass for a finished training
        raise StopIteration

    def _record_the_end(self) -> None:
        pieces = self._pieces
        if self.halt_note is None:
            pieces.attempts.take_snapshot(self.book, durable=True)
        kind = "run_finished" if self.halt_note is None else "run_halted"
        pieces.journal.write(
            kind, attempt=self.attempt, step=self.step, digest=pieces.state.digest()
        )
        pieces.journal.sync()
        pieces.unison.part()

    def _stop(self, number: int) -> NoReturn:
        """Write the state and end, since the system will kill the process soon.

        Only now the handler that was there before has its turn, on every rank: it may save
        something, requeue the job, or exit.
        """
        pieces, name = self._pieces, name_of(number)
        secs = pieces.ranks.from_first("what a stop takes", self._secs)
        self._write("stopping", durable=False, signal=name, **secs)
        pieces.attempts.take_snapshot(self.book, durable=True)
        held = sorted(pieces.attempts.held(), key=lambda ref: -ref.attempt)
        there = [ref.id for ref in held if ref.durable and ref.step == self.step]
        self._write("run_stopped", signal=name, snapshot=there[0] if there else None)
        pieces.journal.sync()
        pieces.unison.part()
        found = f"its state is on disk ({there[0]})" if there else "its state is not on disk"
        self.stopped = (
            f"stopped by {name} after step {self.step}: {found}; start it again with resume"
        )
        if pieces.ranks.is_first:
            pieces.journal.warn(self.stopped)
        self._stop_signals.close()
        self._stop_signals.pass_on(number)
        raise Stopped(self.stopped)

    def _secs(self) -> dict[str, Any]:
        heard, last = self._stop_signals.heard_secs, self._pieces.state.shelf.write_secs
        fits = None if last is None else (heard or 0.0) + last <= self._grace_secs
        return {
            "heard_secs": heard,
            "last_write_secs": last,
            "grace_secs": self._grace_secs,
            "fits": fits,
        }

    def _write(self, kind: str, *, durable: bool = True, **fields: Any) -> None:
        self._pieces.journal.write(
            kind, attempt=self.attempt, step=self.step, durable=durable, **fields
        )
