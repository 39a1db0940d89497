"""A run's past, trained again from one of its snapshots; nothing of the run is touched."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.attachment import facts_of, site_of
from foreshock.core.detector import Alarm
from foreshock.core.errors import ProgramError, SnapshotError
from foreshock.core.names import LOSS, series_name
from foreshock.core.program import Program, as_loss
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import Disk
from foreshock.observation import Observation
from foreshock.overrides import Overrides
from foreshock.quiet_disk import QuietDisk
from foreshock.ranks.agreement import Ranks
from foreshock.recipes import Cadence, Recipe
from foreshock.replicated import RANDOM_PARTS, ModuleOfRanks, PerRankPart, plain_module
from foreshock.run_state import RunState
from foreshock.snapshots.parts import GlobalRandomPart, Part, part_for
from foreshock.state_edits import make_edit
from foreshock.stepping import Stepping
from foreshock.update import Update, trained_parameters

MicroBatches = Sequence[Sequence[int]]
"""Raw positions of each micro-step of a step."""

_NO_ATTEMPT: Final = 10**9
KEPT: Final = "kept"
"""The state that `keep` keeps if no name is given."""


@final
class Replay:
    """Trains steps of a run again as they were trained, or on other data, and watches them.

    One process trains the whole global batch. Steps are those of the run, bit by bit, where
    the program, its settings, the recipe and the number of ranks are; `losses` can be
    compared with what the run recorded. The model, the optimizer and the stream of the program
    are used up, and the global generators are set to where the run had them.

    Args:
        program: built anew, as the run was.
        recipe: what it was watched with.
        run_dir: the run; it is read only.
        records: what had been decided when the steps trained. Overrides of updates and edits
            of the state hold again; plans are not made.
        disk: where the run lies.
        states: how many states are held in memory, of those kept and of the snapshots gone to.

    Raises:
        StreamError: a record does not fit the data.
    """

    def __init__(
        self,
        program: Program,
        recipe: Recipe,
        run_dir: Path,
        records: Iterable[Mapping[str, Any]],
        *,
        disk: Disk,
        states: int = 1,
    ) -> None:
        self.program = program
        self.stream = program.stream
        self.step = 0
        """The last step of the state as it is."""
        self.recent: list[tuple[int, tuple[int, ...]]] = []
        """Step and raw positions of the steps before the snapshot, as far as it knows them."""
        self.losses: dict[int, float] = {}
        """Of the steps trained here, by step; of one trained twice the later."""
        self.rows: dict[int, tuple[bool, NDArray[np.float32]]] = {}
        """Likewise whether the update was made, and what was measured, `[S]` as in `series`."""
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        """What each forward and backward pass is run in, as an experiment has it."""
        self.evaluates = False
        """Whether the model trains in its evaluation mode, so that nothing is dropped out."""
        self.overrides = Overrides()
        self.stream.rules = ()  # what they refused is in the records
        for record in records:
            self.overrides.add_record(record)
            self.stream.apply(record)
        parameters = trained_parameters(plain_module(program.model), program.optimizer)
        update = Update(
            program.optimizer,
            parameters,
            scaler=program.scaler,
            clip=program.clip,
            model=plain_module(program.model),
        )
        self._site = site_of(
            program.model,
            program.optimizer,
            parameters,
            scaler=program.scaler,
            clip=program.clip,
            terms=program.terms,
            per_sample=program.per_sample,
        )
        self._observation = Observation(recipe.signals, self._site, lag_steps=0)
        self.series = self._observation.series
        self.facts = facts_of(self._site, {"precision": program.precision})
        """What causes may know of the program besides readings."""
        self._monitor = recipe.monitor(
            self.series,
            self._observation.update_series,
            self.facts,
            self._observation.intervals,
        )
        self._update = update
        self._steppings: dict[int, Stepping] = {}
        self._parts = _parts(program)
        self._state = RunState(
            self._parts,
            disk=QuietDisk(disk),
            folder=run_dir / "snapshots",
            cadence=Cadence(memory_keep=states, asynchronous=False),
        )
        self._kept: dict[str, SnapshotRef] = {}

    def go_to(self, snapshot_id: str) -> None:
        """Take the state of a durable snapshot of the run.

        Raises:
            SnapshotError: it is not there, is damaged, or is that of another program.
        """
        restored = self._restore(snapshot_id)
        self.recent = [
            (int(step), tuple(int(one) for one in positions))
            for step, positions in restored["recent"]
        ]

    def keep(self, name: str = KEPT) -> None:
        """Remember the state as it is, for `back`; it takes the place of one of this name."""
        slots = [*self._kept] if name in self._kept else [*self._kept, name]
        self._kept[name] = self._state.take(
            step=self.step,
            attempt=_NO_ATTEMPT + slots.index(name),  # not the name of one on disk
            position=self.stream.position,
            health=Health(),
            watching={
                "monitor": self._monitor.to_tree(),
                "signals": self._observation.state_dict(),
                "recent": [],
            },
        )

    def back(self, name: str = KEPT) -> None:
        """Return to the state that was kept under a name, bit by bit.

        Raises:
            SnapshotError: there is none, or it is no longer held.
        """
        if name not in self._kept:
            raise SnapshotError("no state was kept to go back to")
        self._restore(self._kept[name].id)

    @contextmanager
    def within(self, around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Each forward and backward pass runs in what `around` makes, while this lasts."""
        before, self.around = self.around, around
        try:
            yield
        finally:
            self.around = before

    def holds(self, name: str) -> bool:
        """Whether a state was kept under a name."""
        return name in self._kept

    def reseed(self, seed: int) -> None:
        """Begin every random generator anew, the global ones and those that are tracked."""
        for part in self._parts.values():
            part.reseed(seed)

    def not_ready(self) -> dict[str, int]:
        """Series that are not watched yet in the state as it is, with the steps still needed."""
        return self._monitor.not_ready()

    def history(self, series: str, num: int) -> list[float]:
        """The last readings of a series before the state as it is, as its watch holds them; at
        most so many, and none where it is not measured."""
        return [float(one) for one in self._monitor.timeline.values(series)[-num:]]

    def captured(self, part: str) -> Any:
        """The state of a part (`model`, `optimizer`, …) as it is; tensors may be the live ones."""
        return self._parts[part].capture()

    def draw(self) -> MicroBatches | None:
        """The positions of the step that is next in the stream; None if too little is left."""
        drawn: list[tuple[int, ...]] = []
        for _ in range(self.program.accumulate):
            try:
                drawn.append(self.stream.next_batch().positions)
            except StopIteration:
                return None
        return drawn

    def train(self, batches: MicroBatches) -> list[Alarm]:
        """Train the next step on samples at these positions; return the alarms it raises.

        Advisory ones are left out.

        Raises:
            ProgramError: the program's loss raises.
            StreamError: a dataset failed.
        """
        step = self.step + 1
        for edit in self.overrides.edits(step).values():
            make_edit(self._site, edit)
        self.program.model.train(not self.evaluates)
        stepping = self._stepping(len(batches))
        for positions in batches:
            data = self.stream.data_at(positions)
            with self.around():
                told = as_loss(self._loss(step, data))
                stepping.add(told.total, told.terms, step, told.per_sample)
        over = self.overrides
        stepping.finish(step, over.gate_limit(step), over.lr_factor(step), over.tuning(step))
        self.step = step
        return [alarm for alarm in self._read() if alarm in self._monitor.episode]

    def loss_at(self, position: int) -> float:
        """The loss of one sample in the state as it is, nothing trained.

        Raises:
            ProgramError: the program's loss raises.
            StreamError: the dataset failed.
        """
        model = self.program.model
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                loss = self._loss(self.step + 1, self.stream.data_at([position]))
        finally:
            model.train(was_training)
            self._observation.drop_step()
        return float(as_loss(loss).total)

    def close(self) -> None:
        """Take the signals off the model."""
        self._observation.detach()

    def _stepping(self, num_micro_steps: int) -> Stepping:
        """What gathers as many micro-steps as a step is given here."""
        found = self._steppings.get(num_micro_steps)
        if found is None:
            found = self._steppings[num_micro_steps] = Stepping(
                self._update,
                self._observation,
                scheduler=self.program.scheduler,
                accumulate=num_micro_steps,
                terms=self.program.terms,
            )
        return found

    def _loss(self, step: int, data: Any) -> Any:
        try:
            return self.program.loss(self.program.model, data)
        except Exception as error:
            raise ProgramError(
                f"replay of step {step}: the program's loss raised {type(error).__name__}: {error}"
            ) from error

    def _read(self) -> list[Alarm]:
        found: list[Alarm] = []
        name = series_name(LOSS.name)
        for row in self._observation.read(drain=True):
            found += self._monitor.observe(0, row.step, row.committed, row.values)
            self.rows[row.step] = (row.committed, row.values)
            if name in self.series:
                self.losses[row.step] = float(row.values[self.series.index(name)])
        return found

    def _restore(self, snapshot_id: str) -> Any:
        restored = self._state.restore([], snapshot_id=snapshot_id, only=True)
        self._observation.forget(restored.ref.step)
        self._observation.load_state_dict(restored.watching["signals"])
        self._monitor.load_tree(restored.watching["monitor"])
        for stepping in self._steppings.values():
            stepping.forget()
        self.program.optimizer.zero_grad(set_to_none=True)
        self.step = restored.ref.step
        return restored.watching


def _parts(program: Program) -> dict[str, Part]:
    """What a snapshot of the program's run holds, by the names that a Guard gives."""
    ranks = Ranks()
    things = {
        "optimizer": program.optimizer,
        "scheduler": program.scheduler,
        "scaler": program.scaler,
        "stream": program.stream,
    }
    model = plain_module(program.model)
    found: dict[str, Part] = {
        "random": PerRankPart("random", GlobalRandomPart(), ranks),
        "model": ModuleOfRanks(part_for("model", model), program.model),
        **{name: part_for(name, one) for name, one in things.items() if one is not None},
    }
    for name, thing in program.track.items():
        part = part_for(name, thing)
        own = isinstance(part, RANDOM_PARTS)
        found[f"tracked.{name}"] = PerRankPart(name, part, ranks) if own else part
    return found
