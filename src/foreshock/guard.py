"""Guard, the only engine: every loop, adapter and command drives it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch

from foreshock.assembly import Given, Pieces, assemble, track
from foreshock.core.errors import Halted, LoopError
from foreshock.core.incident import IncidentBook
from foreshock.core.probe import Probe
from foreshock.core.program import Loss
from foreshock.core.verdict import Verdict
from foreshock.data.stream import NothingLeftError
from foreshock.durable import Disk, RealDisk
from foreshock.intake import nobody
from foreshock.ranks.agreement import TIMEOUT_SECS, Ranks
from foreshock.recipes import Recipe, standard
from foreshock.snapshots.parts import clone_tree
from foreshock.unison import Together

Listener = Callable[[str, Mapping[str, Any]], None]


class Guard:
    """Watches a training loop, and takes it back to health when it breaks.

        guard = Guard(model, optimizer, stream, run_dir="runs/a", clip=1.0)
        for batch in guard:
            loss = loss_fn(model, batch)
            guard.step(loss)

    `step` runs the backward pass, the gate, the optimizer and the schedule, and observes.
    Time goes backwards only between steps, when the next batch is asked for: after a
    rollback the iterator simply yields what comes next. If the policy halts the run, asking
    for the next batch raises `Halted` with the handover note.

    A step that is skipped consumes its batch; step count and schedule advance; weights,
    moments and update counts stay bit-identical.

    Args:
        model: the module that is trained.
        optimizer: its optimizer; any that needs no closure.
        stream: a `foreshock.Stream`; or any iterable of batches, but then the loop cannot
            go back, and a policy with rollback is refused.
        run_dir: where the run is recorded; must be new or empty unless `resume`.
        scheduler: stepped once a step.
        scaler: a `torch.amp.GradScaler`; passes through, gate included.
        clip: largest gradient norm.
        accumulate: micro-steps in a step; the mean of their losses is differentiated.
        recipe: what to watch with and decide by; `recipes.standard()` by default.
        probes: what recovery is verified with.
        terms: names of the loss terms that `step` will be given.
        per_sample: whether its `Loss` will have the loss of each sample.
        facts: facts of the run that causes may use (precision, …).
        name: the program, for the record; a run is resumed by the same one only.
        max_steps: stop after this many optimizer steps.
        resume: continue the run in `run_dir`; None continues one if it is there, as a restart
            by torchrun wants.
        from_snapshot: resume from this snapshot, whatever speaks against it.
        listener: called with every step that is read and everything that is decided, on the
            first rank.
        disk: where files go; the real disk by default.
        clock: seconds, for the journal.
        timeout_secs: how long ranks wait for each other where they decide.

    Raises:
        CapabilityError: the policy asks for what this loop cannot do.
        RunDirError: the run directory cannot be used.
        ConfigError: an argument is not allowed.
        RankError: ranks differ, or one is gone. Also raised by the loop: the run stops on
            every rank, and goes on from disk when it is started again with `resume`.

    On several ranks each has a Guard of its own, made with the same arguments; a Stream has
    its rank and world size. The first rank writes to `run_dir`, which all must be able to
    read. Every rank judges the same joined values by the same rules, and before anything is
    decided all compare what they are about to do. Supported are replicas (DDP, or a loop
    that averages gradients itself); with three or more, `ranks.ordered_sum` makes a restart
    bit-exact.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        stream: Any,
        *,
        run_dir: str | Path,
        scheduler: Any = None,
        scaler: Any = None,
        clip: float | None = None,
        accumulate: int = 1,
        recipe: Recipe | None = None,
        probes: Sequence[Probe] = (),
        terms: Sequence[str] = (),
        per_sample: bool = False,
        facts: Mapping[str, Any] | None = None,
        name: str = "",
        max_steps: int | None = None,
        resume: bool | None = False,
        from_snapshot: str | None = None,
        listener: Listener | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
        timeout_secs: float = TIMEOUT_SECS,
    ) -> None:
        self._ranks = Ranks(timeout_secs=timeout_secs)
        self._max_steps = max_steps
        tell: Listener = (listener if self._ranks.is_first else None) or nobody
        given = Given(
            model=model,
            optimizer=optimizer,
            stream=stream,
            run_dir=Path(run_dir),
            scheduler=scheduler,
            scaler=scaler,
            clip=clip,
            accumulate=accumulate,
            recipe=recipe if recipe is not None else standard(),
            probes=probes,
            terms=terms,
            per_sample=per_sample,
            facts=facts or {},
            name=name,
            resume=resume,
            tell=tell,
            disk=disk if disk is not None else RealDisk(),
            clock=clock,
        )
        self._started = self._ended = self._batch_open = False
        self._resumed_random: Any = None
        with ExitStack() as undo:
            undo.callback(self._ranks.close)
            self._take(assemble(given, self._ranks, undo))
            if self._resumes:
                with Together(self._unison, lambda: "taking up the run"):
                    self._recovery.resume(from_snapshot)
                self._resumed_random = clone_tree(self._random.capture())
            undo.pop_all()

    def _take(self, pieces: Pieces) -> None:
        self.capabilities = pieces.capabilities
        """What this loop lets Foreshock do."""
        self.monitor = pieces.monitor
        """What watches: the timeline, the present episode, the thresholds."""
        self._resumes = pieces.resumes
        self._unison = pieces.unison
        self._feed = pieces.feed
        self._random = pieces.random
        self._state = pieces.state
        self._observation = pieces.observation
        self._intake = pieces.intake
        self._journal = pieces.journal
        self._stepping = pieces.stepping
        self._attempts = pieces.attempts
        self._control = pieces.control
        self._supervisor = pieces.supervisor
        self._recovery = pieces.recovery
        self._notices = pieces.notices
        self._upkeep = pieces.upkeep

    def __iter__(self) -> "Guard":
        return self

    def __next__(self) -> Any:
        if self._batch_open:
            raise LoopError(
                f"step {self.step_number + 1}: the next batch was asked for before "
                "guard.step(loss) was called for the last one"
            )
        with Together(self._unison, lambda: f"before step {self.step_number + 1}"):
            if self._stepping.micro_step == 0:
                self._between_steps()
            batch = self._fetch()
            if self._stepping.micro_step == 0:
                self._control.begin_step(self._attempts.progress.step + 1)
        self._batch_open = True
        return batch

    def step(
        self, loss: "torch.Tensor | Loss", terms: Mapping[str, Any] | None = None
    ) -> Verdict | None:
        """Take one micro-step: backward, and after the last of a step the update.

        Args:
            loss: `[]` mean loss of the micro-batch, or a `Loss`.
            terms: its terms, by the names given to the Guard.

        Returns:
            The verdict after a whole step (`committed` is None where the device has not
            said), None after an earlier micro-step.

        Raises:
            LoopError: no batch was taken, or the loss is not a scalar with a gradient.
        """
        step = self.step_number + 1
        if not self._batch_open:
            raise LoopError(f"step {step}: guard.step was called without a batch from the guard")
        samples = None
        if isinstance(loss, Loss):
            terms, samples, loss = loss.terms, loss.per_sample, loss.total
        with Together(self._unison, lambda: f"step {step}"):
            return self._step(step, loss, terms or {}, samples)

    def _step(
        self, step: int, loss: Any, terms: Mapping[str, Any], samples: torch.Tensor | None
    ) -> Verdict | None:
        progress = self._attempts.progress
        complete = self._stepping.add(loss, terms, step, samples)
        self._batch_open = False
        if samples is not None and self._feed.wants_losses:
            self._feed.note_losses(samples.detach().flatten().tolist())
        if not complete:
            return None
        progress.step = step
        verdict = self._stepping.finish(
            step,
            self._control.gate_limit(step),
            self._control.lr_factor(step),
            self._control.tuning(step),
        )
        if positions := self._feed.take_positions():
            progress.recent.append((step, tuple(positions)))
            self._journal.append_provenance(step, positions)
        self._absorb(drain=False)
        return verdict

    def track(self, name: str, thing: Any, *, per_rank: bool | None = None) -> None:
        """Rewind further state with the run: an object with `state_dict`, or a generator.

        Call it before the first batch is asked for. On a resume the object gets its state
        back at once.

        Args:
            name: its own, not taken yet.
            thing: what is rewound.
            per_rank: whether each rank has its own state of it, which must be small; by
                default true of generators only. All else must be alike on every rank.

        Raises:
            LoopError: the run has begun.
            SnapshotError: the name is taken, or the object cannot be rewound.
        """
        if self._started:
            raise LoopError(f"track({name!r}) must be called before the first batch is asked for")
        track(self._state, self._ranks, name, thing, per_rank=per_rank)

    def close(self) -> None:
        """Stop watching: hooks come off the model, and the run directory is freed."""
        try:
            self._attempts.close()
        finally:
            self._observation.detach()
            self._notices.close()
            self._journal.close()
            self._ranks.close()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None:
                self._unison.ended(f"step {self.step_number + 1}", error)
        finally:
            self.close()

    @property
    def step_number(self) -> int:
        """Optimizer steps taken, skipped ones included; falls when time goes back."""
        return self._attempts.progress.step

    @property
    def attempt(self) -> int:
        """Rises at every rollback and every resume."""
        return self._attempts.progress.attempt

    @property
    def halted(self) -> str | None:
        """The handover note, if the policy stopped the run."""
        return self._control.halt_note

    @property
    def book(self) -> IncidentBook:
        """Every incident of the run."""
        return self._supervisor.book

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """Everything that was journalled so far."""
        return self._journal.records

    @property
    def num_quarantined(self) -> int:
        """Distinct samples set aside."""
        return self._feed.stream.ledger.num_samples if self._feed.stream is not None else 0

    def digest(self) -> str:
        """Digest of weights, optimizer, schedule, scaler, RNG, stream and tracked state.

        On several ranks all must ask for it.
        """
        return self._state.digest()

    def _between_steps(self) -> None:
        if not self._started:
            self._start()
        progress = self._attempts.progress
        while True:
            ending = self._max_steps is not None and progress.step >= self._max_steps
            due = self._attempts.snapshot_is_due()
            if ending or due:
                self._absorb(drain=True)
            self._upkeep.settle()
            if self._recovery.carry_out_plan():
                self._stepping.forget()
                self._feed.take_positions()
                if self.halted is not None:
                    break
            elif not (self._recovery.probe_if_in_doubt() or self._recovery.verify_if_settled()):
                break
        if self.halted is not None or ending:
            self._end()
        self._upkeep.take_in()
        if due:
            self._attempts.take_snapshot(self.book)
            self._unison.check("snapshot")
        self._control.measure_if_due()

    def _start(self) -> None:
        self._started = True
        if self._attempts.progress.attempt == 0:
            self._attempts.begin()
            self._journal.write(
                "run_started",
                attempt=self.attempt,
                step=0,
                capabilities=sorted(self.capabilities),
                not_watched_yet=self.monitor.not_ready(),
            )
            self._attempts.take_snapshot(self.book, durable=True, required=True)
            self._unison.check("snapshot")
        elif self._resumed_random is not None:
            # Building loaders and iterators in between may have drawn random numbers.
            self._random.restore(self._resumed_random)

    def _fetch(self) -> Any:
        """The next batch. Where the data ends, the last steps are read: they may send us back."""
        while True:
            try:
                return self._feed.next_batch()
            except (StopIteration, NothingLeftError) as end:
                if self._ended:
                    self._end()
                self._drop_incomplete_step()
                self._absorb(drain=True)
                waiting = self.book.unfinished_plan is not None
                if not waiting and not self._recovery.verify_if_settled():
                    self._recovery.end_of_data(end, self.num_quarantined)
                    self._end()
                self._between_steps()

    def _drop_incomplete_step(self) -> None:
        """The data ended between two micro-steps: too little is left to make a step of."""
        if not self._stepping.micro_step:
            return
        self._stepping.forget()
        self._journal.write(
            "step_incomplete",
            attempt=self.attempt,
            step=self.step_number,
            positions=self._feed.take_positions(),
        )

    def _end(self) -> NoReturn:
        if not self._ended:
            self._ended = True
            self._record_the_end()
        if self.halted is not None:
            self._notices.halted(self.halted)
            raise Halted(self.halted)  # ending quietly would pass for a finished training
        raise StopIteration

    def _record_the_end(self) -> None:
        if self.halted is None:
            self._attempts.take_snapshot(self.book, durable=True)
        kind = "run_finished" if self.halted is None else "run_halted"
        self._journal.write(kind, attempt=self.attempt, step=self.step_number, digest=self.digest())
        self._journal.sync()
        self._unison.part()

    def _absorb(self, *, drain: bool) -> None:
        self._intake.absorb(self.attempt, drain=drain)
