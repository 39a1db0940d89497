"""The course of a run: what happens before each batch, and how the run ends."""

from typing import Any, NoReturn

from foreshock.assembly import Pieces
from foreshock.core.errors import Halted
from foreshock.core.incident import IncidentBook
from foreshock.data.stream import NothingLeftError
from foreshock.snapshots.parts import clone_tree


class Course:
    """Gives out the batches of a run; before each step decisions are carried out.

    Args:
        pieces: what the run is made of.
        max_steps: stop after this many optimizer steps; None for no end.
    """

    def __init__(self, pieces: Pieces, max_steps: int | None) -> None:
        self.started = False
        """Whether the first batch was asked for."""
        self._pieces = pieces
        self._max_steps = max_steps
        self._ended = False
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
        """
        pieces = self._pieces
        if not self.started:
            self._start()
        while True:
            ending = self._max_steps is not None and self.step >= self._max_steps
            due = pieces.attempts.snapshot_is_due()
            if ending or due:
                self.absorb(drain=True)
            pieces.upkeep.settle()
            if pieces.recovery.carry_out_plan():
                pieces.stepping.forget()
                pieces.feed.take_positions()
                if self.halt_note is not None:
                    break
            elif not (pieces.recovery.probe_if_in_doubt() or pieces.recovery.verify_if_settled()):
                break
        if self.halt_note is not None or ending:
            self._end()
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

    def absorb(self, *, drain: bool) -> None:
        """Take in what was measured; all of it if `drain`, else up to the lag."""
        self._pieces.intake.absorb(self.attempt, drain=drain)

    def _start(self) -> None:
        pieces = self._pieces
        self.started = True
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
