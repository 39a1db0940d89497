"""Guard, the only engine: every loop, adapter and command drives it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from foreshock.assembly import Pieces, assemble
from foreshock.core.errors import LoopError
from foreshock.core.incident import IncidentBook
from foreshock.core.probe import Probe
from foreshock.core.program import Loss, as_loss
from foreshock.core.verdict import Verdict
from foreshock.course import Course
from foreshock.durable import Disk, RealDisk
from foreshock.given import Given
from foreshock.intake import nobody
from foreshock.ranks.agreement import TIMEOUT_SECS, Ranks
from foreshock.recipes import Recipe, standard
from foreshock.replicated import track, uncompiled
from foreshock.several import as_one_optimizer, as_one_scheduler
from foreshock.stop_signals import GRACE_SECS, STOP_SIGNALS, StopSignals
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
        model: the module that is trained; compiled or not, it is the same run.
        optimizer: its optimizer; any that needs no closure. Or several, in the order in which
            they step; `scheduler` is then a list as well.
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
        driven: the loop runs backward passes and the schedule itself, and calls `gathered` and
            `update` where others call `step`. `accumulate` is then the most micro-steps of a
            step, and all their batches may be asked for at once.
        max_steps: stop after this many optimizer steps.
        resume: continue the run in `run_dir`; None continues one if it is there, as a restart
            by torchrun wants.
        from_snapshot: resume from this snapshot, whatever speaks against it.
        listener: called with every step that is read and everything that is decided, on the
            first rank.
        disk: where files go; the real disk by default.
        clock: seconds, for the journal.
        timeout_secs: how long ranks wait for each other where they decide.
        signals: by which the system asks the run to stop (`docs/launchers.md`). The step in hand
            is finished, its state written, and the loop raises `Stopped`. In a thread other than
            the main one, and where `stream` cannot go back, none is listened to.
        grace_secs: how long the system waits before it kills.

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
    that averages gradients itself; with three or more, `ranks.ordered_sum` makes a restart
    bit-exact) and shards (FSDP2, HSDP).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
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
        driven: bool = False,
        max_steps: int | None = None,
        resume: bool | None = False,
        from_snapshot: str | None = None,
        listener: Listener | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
        timeout_secs: float = TIMEOUT_SECS,
        signals: Sequence[str] = STOP_SIGNALS,
        grace_secs: float = GRACE_SECS,
    ) -> None:
        self._ranks = Ranks(timeout_secs=timeout_secs)
        tell: Listener = (listener if self._ranks.is_first else None) or nobody
        given = Given(
            model=uncompiled(model),
            optimizer=as_one_optimizer(optimizer),
            stream=stream,
            run_dir=Path(run_dir),
            scheduler=as_one_scheduler(scheduler),
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
            stop=StopSignals(signals),
        )
        self._accumulate = accumulate
        self._driven = driven
        self._num_open = 0  # batches whose loss was not given yet
        with ExitStack() as undo:
            undo.callback(self._ranks.close)
            pieces = assemble(given, self._ranks, undo)
            self._take(pieces)
            self._course = Course(pieces, given.stop, max_steps, grace_secs)
            if pieces.resumes:
                with Together(self._unison, lambda: "taking up the run"):
                    self._course.resume(from_snapshot)
            undo.pop_all()

    def _take(self, pieces: Pieces) -> None:
        self.capabilities = pieces.capabilities
        """What this loop lets Foreshock do."""
        self.monitor = pieces.monitor
        """What watches: the timeline, the present episode, the thresholds."""
        self._unison = pieces.unison
        self._feed = pieces.feed
        self._state = pieces.state
        self._observation = pieces.observation
        self._journal = pieces.journal
        self._stepping = pieces.stepping
        self._attempts = pieces.attempts
        self._control = pieces.control
        self._supervisor = pieces.supervisor
        self._notices = pieces.notices

    def __iter__(self) -> "Guard":
        return self

    def __next__(self) -> Any:
        step = self.step_number + 1
        if self._num_open and not self._driven:
            raise LoopError(
                f"step {step}: the next batch was asked for before guard.step(loss) was called "
                "for the last one"
            )
        if self._num_open + self._stepping.micro_step >= self._accumulate:
            raise LoopError(
                f"step {step}: another batch was asked for before guard.update() was called; "
                f"accumulate is {self._accumulate}"
            )
        with Together(self._unison, lambda: f"before step {self.step_number + 1}"):
            first = not self._num_open and not self._stepping.micro_step
            if first:
                self._course.between_steps()
            batch = self._course.fetch()
            if first:
                self._control.begin_step(self.step_number + 1)
        self._num_open += 1
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
        if not self._num_open:
            raise LoopError(f"step {step}: guard.step was called without a batch from the guard")
        told = as_loss(loss, terms)
        with Together(self._unison, lambda: f"step {step}"):
            complete = self._stepping.add(told.total, told.terms, step, told.per_sample)
            self._took(told.per_sample)
            return self._finish(step) if complete else None

    def _took(self, samples: torch.Tensor | None) -> None:
        """A batch has its loss."""
        self._num_open -= 1
        if samples is not None and self._feed.wants_losses:
            self._feed.note_losses(samples.detach().flatten().tolist())

    def gathered(
        self,
        share: torch.Tensor,
        terms: Mapping[str, Any] | None = None,
        samples: torch.Tensor | None = None,
    ) -> None:
        """Tell the loss of a micro-step whose backward pass the loop has run; when `driven`.

        Args:
            share: `[]` of the step's loss, which is the sum over its micro-steps.
            terms: shares of its terms, by the names given to the Guard.
            samples: the loss of each of its samples, where it is known.

        Raises:
            LoopError: no batch was taken, the terms are others than were announced, or the
                Guard is not `driven`.
        """
        step = self.step_number + 1
        if not self._driven or not self._num_open:
            raise LoopError(
                f"step {step}: guard.gathered is for a Guard with driven=True, after a batch"
            )
        self._stepping.gathered(share, terms or {}, step, samples)
        self._took(samples)

    def update(self) -> Verdict:
        """Gate, clip and make the update of the micro-steps gathered; when `driven`.

        The gradients are those that the backward passes left, of the whole step. They are
        gone afterwards. The schedule is left to the loop, which steps it whatever the verdict.

        Raises:
            LoopError: nothing was gathered, or a batch was taken whose loss was not given.
        """
        step = self.step_number + 1
        if self._num_open or not self._stepping.micro_step or not self._driven:
            raise LoopError(
                f"step {step}: guard.update was called with {self._num_open} batches that have "
                f"no loss yet and {self._stepping.micro_step} that have one"
            )
        with Together(self._unison, lambda: f"step {step}"):
            return self._finish(step)

    def _finish(self, step: int) -> Verdict:
        self._attempts.progress.step = step
        verdict = self._stepping.finish(
            step,
            self._control.gate_limit(step),
            self._control.lr_factor(step),
            self._control.tuning(step),
            step_schedule=not self._driven,
        )
        if positions := self._feed.take_positions():
            self._attempts.progress.recent.append((step, tuple(positions)))
            self._journal.append_provenance(step, positions)
        self._course.absorb(drain=False)
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
        if self._course.started:
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
            self._course.close()

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
    def grad_norm(self) -> torch.Tensor | None:
        """Norm `[]` of the last step's gradients before clipping, over all ranks, on the device.

        None before the first step. Reading its value waits for the device.
        """
        return self._stepping.grad_norm

    @property
    def halted(self) -> str | None:
        """The handover note, if the policy stopped the run."""
        return self._control.halt_note

    @property
    def stopped(self) -> str | None:
        """By which signal and where, if the system stopped the run."""
        return self._course.stopped

    @property
    def asked_to_stop(self) -> bool:
        """Whether the next step will not begin, because a signal came; the same on all ranks."""
        return self._course.stop_signal != 0

    def note(self, kind: str, **fields: Any) -> None:
        """Journal a record of one's own, at this step."""
        self._journal.write(kind, attempt=self.attempt, step=self.step_number, **fields)

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
        return self._course.num_quarantined

    def digest(self) -> str:
        """Digest of weights, optimizer, schedule, scaler, RNG, stream and tracked state.

        On several ranks all must ask for it.
        """
        return self._state.digest()
