"""Guard, the only engine: every loop, adapter and command drives it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch

from foreshock.admission import (
    capabilities_of,
    check_policy,
    check_scheduler,
    open_journal,
    run_identity,
)
from foreshock.attachment import site_of
from foreshock.attempts import Attempts, Progress
from foreshock.control import Control
from foreshock.core.errors import ConfigError, Halted, LoopError
from foreshock.core.incident import IncidentBook
from foreshock.core.probe import Probe
from foreshock.core.program import Loss
from foreshock.core.verdict import Verdict
from foreshock.data.stream import NothingLeftError
from foreshock.durable import Disk, RealDisk
from foreshock.feed import Feed
from foreshock.observation import Observation
from foreshock.recipes import Recipe, standard
from foreshock.recovery import Recovery
from foreshock.run_state import RunState
from foreshock.snapshots.parts import GlobalRandomPart, Part, clone_tree, part_for
from foreshock.stepping import Stepping
from foreshock.supervision import Supervisor
from foreshock.update import Update, trained_parameters

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
        resume: continue the run in `run_dir`.
        listener: called with every step that is read and everything that is decided.
        disk: where files go; the real disk by default.
        clock: seconds, for the journal.

    Raises:
        CapabilityError: the policy asks for what this loop cannot do.
        RunDirError: the run directory cannot be used.
        ConfigError: an argument is not allowed.
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
        resume: bool = False,
        listener: Listener | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if accumulate < 1:
            raise ConfigError(f"accumulate is {accumulate}; it must be at least 1 micro-step")
        recipe = recipe if recipe is not None else standard()
        disk, run_dir = disk if disk is not None else RealDisk(), Path(run_dir)
        self._feed = Feed(stream)
        self._max_steps = max_steps
        self._tell: Listener = listener or (lambda _kind, _content: None)
        parameters = trained_parameters(model, optimizer)
        update = Update(optimizer, parameters, scaler=scaler, clip=clip)
        self.capabilities = capabilities_of(update, self._feed.stream)
        """What this loop lets Foreshock do."""
        check_policy(recipe.policy, self.capabilities, resume=resume)
        check_scheduler(scheduler)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        parts["stream"] = self._feed.stream
        present = {key: part for key, part in parts.items() if part is not None}
        self._random = GlobalRandomPart()
        rewound: dict[str, Part] = {key: part_for(key, one) for key, one in present.items()}
        self._state = RunState(
            {"random": self._random, **rewound},
            disk=disk,
            folder=run_dir / "snapshots",
            cadence=recipe.cadence,
        )
        scaled = {"scaler": scaler, "clip": clip, "terms": terms, "per_sample": per_sample}
        site = site_of(model, optimizer, parameters, **scaled)
        self._observation = Observation(recipe.signals, site, recipe.lag_steps)
        identity = run_identity(name, present, accumulate=accumulate, lag_steps=recipe.lag_steps)
        with ExitStack() as undo:
            undo.callback(self._observation.detach)
            self._journal = open_journal(disk, run_dir, identity, clock, resume=resume)
            undo.callback(self._journal.close)
            self.monitor = recipe.monitor(
                self._observation.series,
                self._observation.update_series,
                {"has_scaler": scaler is not None, **(facts or {})},
                self._observation.intervals,
            )
            """What watches: the timeline, the present episode, the thresholds."""
            self._stepping = Stepping(
                update,
                self._observation,
                scheduler=scheduler,
                accumulate=accumulate,
                terms=terms,
            )
            self._attempts = Attempts(
                Progress(),
                self._state,
                self._journal,
                monitor=self.monitor,
                observation=self._observation,
                optimizer=optimizer,
                stream=self._feed.stream,
                cadence=recipe.cadence,
            )
            self._control = Control(
                self._attempts,
                self._journal,
                capabilities=self.capabilities,
                model=model,
                probes=tuple(probes),
                stream=self._feed.stream,
                disk=disk,
            )
            self._supervisor = Supervisor(
                self.monitor,
                recipe.policy,
                self._journal,
                has_scaler=scaler is not None,
                findings=self._attempts.findings,
                snapshots=self._attempts.refs,
                position_after=self._attempts.position_after,
                lag_steps=recipe.lag_steps,
            )
            self._recovery = Recovery(self._attempts, self._control, self._supervisor, self._tell)
            if self._feed.stream is not None:
                self._feed.stream.rules = recipe.rules
                self._feed.stream.on_reject = self._control.rejected
            self._started = False
            self._ended = False
            self._batch_open = False
            self._resumed_random: Any = None
            if resume:
                self._recovery.resume()
                self._resumed_random = clone_tree(self._random.capture())
            undo.pop_all()

    def __iter__(self) -> "Guard":
        return self

    def __next__(self) -> Any:
        if self._batch_open:
            raise LoopError(
                f"step {self.step_number + 1}: the next batch was asked for before "
                "guard.step(loss) was called for the last one"
            )
        if self._stepping.micro_step == 0:
            self._between_steps()
        batch = self._fetch()
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
        progress = self._attempts.progress
        step = progress.step + 1
        if not self._batch_open:
            raise LoopError(f"step {step}: guard.step was called without a batch from the guard")
        samples = None
        if isinstance(loss, Loss):
            terms, samples, loss = loss.terms, loss.per_sample, loss.total
        complete = self._stepping.add(loss, terms or {}, step, samples)
        self._batch_open = False
        if not complete:
            return None
        progress.step = step
        verdict = self._stepping.finish(
            step, self._control.gate_limit(step), self._control.lr_factor(step)
        )
        if positions := self._feed.take_positions():
            progress.recent.append((step, tuple(positions)))
            self._journal.append_provenance(step, positions)
        self._absorb(drain=False)
        return verdict

    def track(self, name: str, thing: Any) -> None:
        """Rewind further state with the run: an object with `state_dict`, or a generator.

        Call it before the first batch is asked for. On a resume the object gets its state
        back at once.

        Raises:
            LoopError: the run has begun.
            SnapshotError: the name is taken, or the object cannot be rewound.
        """
        if self._started:
            raise LoopError(f"track({name!r}) must be called before the first batch is asked for")
        self._state.add(f"tracked.{name}", part_for(name, thing))

    def close(self) -> None:
        """Stop watching: hooks come off the model, and the run directory is freed."""
        self._observation.detach()
        self._journal.close()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_: object) -> None:
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
        """Digest of weights, optimizer, schedule, scaler, RNG, stream and tracked state."""
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
            if self._recovery.carry_out_plan():
                self._stepping.forget()
                self._feed.take_positions()
                if self.halted is not None:
                    break
            elif not (self._recovery.probe_if_in_doubt() or self._recovery.verify_if_settled()):
                break
        if self.halted is not None or ending:
            self._end()
        if due:
            self._attempts.take_snapshot(self.book)
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
            raise Halted(self.halted)  # ending quietly would pass for a finished training
        raise StopIteration

    def _record_the_end(self) -> None:
        if self.halted is None:
            self._attempts.take_snapshot(self.book, durable=True)
        kind = "run_finished" if self.halted is None else "run_halted"
        self._journal.write(kind, attempt=self.attempt, step=self.step_number, digest=self.digest())
        self._journal.sync()

    def _absorb(self, *, drain: bool) -> None:
        for row in self._observation.read(drain=drain):
            self._journal.append_reading(row.step, int(row.committed), row.values)
            limit = self._control.gate_limit(row.step)
            known = len(self.monitor.episode)
            plan = self._supervisor.see(self.attempt, row, limit)
            alarms = self.monitor.episode[known:]
            self._tell("step", {"row": row, "series": self._observation.series, "alarms": alarms})
            if plan is not None:
                self._tell("plan", {"plan": plan, "incident": self.book.incidents[-1]})
                break  # later steps are judged once it has been carried out, or not at all
