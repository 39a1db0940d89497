"""Lightning: the Guard inside `trainer.fit()`.

    trainer = Trainer(max_epochs=3, callbacks=[ForeshockCallback("runs/a")])
    trainer.fit(module, loader)

The Trainer keeps its loop, its hooks, its logs and its checkpoints. The Guard gives out the
batches, so that it can take them back and set rows aside, and stands where the optimizer's step
is: it takes the norm before clipping, clips, and makes the update or skips it exactly. After a
rollback the Trainer stands where it stood then: `global_step`, `current_epoch` and the batch
index fall, and an epoch that is gone back into ends once more.

What differs from a Trainer alone: rows come in Foreshock's order, in whole batches across the
ends of epochs, and are read in the training's own process; the schedule advances over a skipped
step; `training_step` must return a loss, for bad steps are skipped here; under fp16
`on_before_optimizer_step` sees gradients that are still scaled. What other callbacks keep
(best scores, patience) and means over an epoch still hold what was taken back.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from foreshock.core.errors import CapabilityError, LoopError, RunDirError
from foreshock.core.probe import Probe
from foreshock.data.stream import Stage, Stream
from foreshock.guard import Guard
from foreshock.recipes import Recipe
from foreshock.stand_in import drawn, stand_in

CAPABILITIES = {
    "title": "the Trainer of Lightning",
    "packages": ["lightning"],
    "extra": "lightning",
    "yes": "watch skip rollback quarantine resume stop clip lr accumulate fp16 processes",
    "limited": {"own_loader": "with rewind=False steps are skipped; none is taken back or resumed"},
    "no": {
        "samples": "training_step gives the Trainer the mean alone",
        "shards": "strategies other than one device and DDP were never tried",
    },
    "refuses": {
        "manual optimization": "use foreshock.integrations.fabric, or foreshock.Guard",
        "DeepSpeedStrategy": "its engine updates by itself, and has no adapter under the Trainer",
        "FSDPStrategy": "it is FSDP1, which flattens parameters; use ddp",
        "other strategies": "they were never tried; use one device, or ddp",
        "clipping by value": 'use gradient_clip_algorithm="norm"',
        "clipping in a hook": "use Trainer(gradient_clip_val=...)",
        "reload_dataloaders_every_n_epochs": "it brings other data under way; set it to 0",
        "overfit_batches": "it trains the same few batches for ever; set it to 0",
        "GradientAccumulationScheduler": "it changes the number of micro-steps under way",
        "StochasticWeightAveraging": "its average would keep what is taken back",
        "WeightAveraging": "its average would keep what is taken back",
        "BatchSizeFinder": "it trains on trial; call it before, in a fit of its own",
        "LearningRateFinder": "it trains on trial; call it before, in a fit of its own",
    },
}
_ORDERS = ("RandomSampler", "SequentialSampler", "DistributedSampler")


class ForeshockCallback(Callback):
    """Guards each `fit` of the Trainer that it is given to.

    Args:
        run_dir: where the run is recorded. One that is there already is continued from its
            own snapshots, whatever `ckpt_path` says.
        recipe: see `Guard`.
        probes: see `Guard`.
        to_text: from a row to its text, for data rules and reports.
        seed: of the order of rows; by default the one given to `seed_everything`, or 0.
        rewind: False leaves the Trainer its own loader, which cannot go back: the recipe must
            then do without rollback. For iterable datasets, samplers with an order of their
            own, and several loaders.
        options: further arguments of `Guard`.

    Attributes:
        guard: the Guard of the last `fit`; None before the first.

    `fit` raises CapabilityError, before the first step, where the Guard cannot follow what the
    Trainer does; the message says what and why.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        recipe: Recipe | None = None,
        probes: Sequence[Probe] = (),
        to_text: Callable[[Any], str] | None = None,
        seed: int | None = None,
        rewind: bool = True,
        **options: Any,
    ) -> None:
        self.guard: Guard | None = None
        self._run_dir = Path(run_dir)
        self._options = {"recipe": recipe, "probes": probes, "resume": None, **options}
        self._to_text = to_text
        self._seed = seed
        self._rewind = rewind
        self._undo = ExitStack()

    # ---- events of the Trainer ------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._undo.close()
        _check(trainer, pl_module, rewind=self._rewind)
        self._place = _Place(trainer)
        self._stream: Any = None
        self._given: list[Any] = []  # the Trainer's own batch, where it keeps its loader
        self._ahead: list[Any] = []
        self._micro_step = 0
        self._last_step = math.inf
        if self._rewind:
            source = trainer.fit_loop._data_source
            own = source.dataloader
            stand_in(self._undo, source, "dataloader", lambda: self._loader(trainer, own()))
        else:
            self._stream = _handed_on(self._given)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step and not (self._run_dir / "run.json").exists():
            raise RunDirError(
                f"the Trainer resumes at step {trainer.global_step}, but {self._run_dir} has no "
                "run: a run that began without Foreshock has no record of the data it saw. Load "
                "the weights into the module and fit without ckpt_path"
            )
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        steady = [one for one in schedules if type(one).__name__ != "ReduceLROnPlateau"]
        if self._rewind:
            self._last_step = trainer.estimated_stepping_batches
        self.guard = guard = Guard(
            trainer.strategy.model,
            trainer.optimizers[0],
            self._stream,
            run_dir=self._run_dir,
            scheduler=steady[0] if steady else None,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            clip=trainer.gradient_clip_val or None,
            accumulate=trainer.accumulate_grad_batches,
            driven=True,
            max_steps=None if math.isinf(self._last_step) else int(self._last_step),
            **self._options,
        )
        self._undo.push(guard.__exit__)
        if self._rewind:
            for number, one in enumerate(schedules):
                if one not in steady[:1]:
                    guard.track(f"schedule{number}", one)
            self._place.leave_checkpoint()
            guard.track("lightning", self._place)
        backward = partial(self._backward, guard, trainer.strategy.backward)
        stand_in(self._undo, trainer.strategy, "backward", backward)
        stand_in(
            self._undo, trainer.strategy, "optimizer_step", partial(self._step, guard, trainer)
        )
        stand_in(self._undo, trainer.precision_plugin, "clip_gradients", lambda *_, **__: None)
        self._look_ahead()
        self._place.is_training = True

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._rewind and self.guard is not None:
            self._given.append(batch)
            next(self.guard)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._look_ahead():
            self._place.in_the_middle_of_a_batch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._rewind and self.guard is not None:
            with suppress(StopIteration):
                next(self.guard)  # the data is at its end
        self._undo.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._undo.__exit__(type(exception), exception, None)

    # ---- what stands in the Trainer's place -----------------------------------------

    def _loader(self, trainer: Any, own: Any) -> Any:
        if self._stream is None:
            self._stream = _stream(trainer, own, self._to_text, self._seed)
        return _Batches(self._next, own, self._stream.batch_size)

    def _next(self) -> Any:
        assert self.guard is not None
        self._place.take_up()
        return self._ahead.pop() if self._ahead else next(self.guard)

    def _look_ahead(self) -> bool:
        """Whether the run goes back from its last step: the last ones are not judged yet."""
        guard = self.guard
        assert guard is not None
        if self._micro_step or guard.step_number < self._last_step:
            return False
        try:
            self._ahead.append(next(guard))
        except StopIteration:
            return False
        return True

    def _backward(
        self, guard: Guard, own: Callable[..., Any], loss: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:
        result = own(loss, *rest, **named)
        guard.gathered(loss)
        self._micro_step += 1
        return result

    def _step(
        self,
        guard: Guard,
        trainer: Any,
        optimizer: Any,
        closure: Callable[[], Any],
        *_: Any,
        **__: Any,
    ) -> Any:
        result = closure()
        if result is None:
            raise LoopError(
                f"step {guard.step_number + 1}: training_step returned None, but the Guard "
                "skips bad steps itself, and has to see them: return the loss"
            )
        trainer.precision_plugin._after_closure(trainer.lightning_module, optimizer)
        guard.update()
        self._micro_step = 0
        optimizer._opt_called = True  # if the first update was skipped: torch would warn
        return result


class _Place:
    """Where the Trainer stands; goes back with the run."""

    def __init__(self, trainer: Any) -> None:
        self.is_training = False
        self._trainer = trainer
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._batch: int | None = None  # of a resumed epoch that has not begun yet

    def state_dict(self) -> dict[str, int]:
        batches = self._epoch.batch_progress
        epoch, batch = self._fit.epoch_progress.current.processed, batches.current.ready
        if self._batch is not None:
            batch = self._batch
        elif self._epoch._num_ready_batches_reached():
            epoch, batch = epoch + 1, 0
        steps = self._epoch.automatic_optimization.optim_progress.optimizer.step
        return {
            "epoch": epoch,
            "batch": batch,
            "batches": batches.total.ready,
            "steps": steps.total.completed,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        epochs, batches = self._fit.epoch_progress, self._epoch.batch_progress
        begun = state["epoch"] + int(self.is_training)
        for progress in (epochs.total, epochs.current):
            progress.ready = progress.started = begun
            progress.processed = progress.completed = state["epoch"]
        total = batches.total
        total.ready = total.started = total.processed = total.completed = state["batches"]
        steps = self._epoch.automatic_optimization.optim_progress.optimizer.step
        steps.total.ready = steps.total.completed = state["steps"]
        self._epoch._batches_that_stepped = state["steps"]
        self._batch = state["batch"]
        if self.is_training:
            self.take_up()
        for saving in self._trainer.checkpoint_callbacks:
            saving._last_global_step_saved = 0  # else a step made again would not be saved again

    def take_up(self) -> None:
        """Stand at the batch that was loaded, if one was."""
        if self._batch is None:
            return
        current, fetcher = self._epoch.batch_progress.current, self._fit._data_fetcher
        current.ready = current.started = current.processed = current.completed = self._batch
        self._epoch.batch_progress.is_last_batch = fetcher.done = False
        fetcher.fetched = self._batch
        self._batch = None

    def in_the_middle_of_a_batch(self) -> None:
        """The Trainer is about to count a batch that was taken back, and to validate after it."""
        batches = self._epoch.batch_progress
        batches.total.completed -= 1
        batches.current.completed -= 1
        self._epoch._batches_that_stepped -= 1
        self._epoch._skip_next_val = True

    def leave_checkpoint(self) -> None:
        """Forget that the Trainer was going to go on from a checkpoint of its own."""
        for loop in (self._fit, self._epoch, self._epoch.val_loop):
            loop._restarting = loop._loaded_from_state_dict = False
            loop._resuming_from_checkpoint = False
            loop.reset_restart_stage()


class _Batches:
    """What the Trainer iterates over: an epoch's number of batches, whatever they are."""

    def __init__(self, take: Callable[[], Any], loader: Any, batch_size: int) -> None:
        self._take = take
        self._loader = loader
        rounded = math.floor if loader.drop_last else math.ceil
        self._length = rounded(len(loader.dataset) / batch_size)

    def __iter__(self) -> Iterator[Any]:
        return drawn(self._take)

    def __len__(self) -> int:
        return self._length

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("sampler", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def _handed_on(given: list[Any]) -> Iterator[Any]:
    """What is put into a list, until nothing is."""
    while given:
        yield given.pop()


def _kinds(thing: Any) -> set[str]:
    """Names of a thing's classes: Lightning comes as two packages with the same ones."""
    return {kind.__name__ for kind in type(thing).__mro__}


def _check(trainer: Any, module: Any, *, rewind: bool) -> None:
    """Refuse what the Guard cannot follow, before anything is trained."""
    strategy = _kinds(trainer.strategy)
    clipping = type(module).configure_gradient_clipping.__qualname__
    clips_by_value = trainer.gradient_clip_algorithm == "value"
    there = {
        "manual optimization": not module.automatic_optimization,
        "DeepSpeedStrategy": "DeepSpeedStrategy" in strategy,
        "FSDPStrategy": "FSDPStrategy" in strategy,
        "other strategies": not strategy & {"SingleDeviceStrategy", "DDPStrategy"}
        or "XLA" in str(strategy),
        "clipping by value": trainer.gradient_clip_val and clips_by_value,
        "clipping in a hook": not clipping.startswith("LightningModule."),
        "reload_dataloaders_every_n_epochs": rewind and trainer.reload_dataloaders_every_n_epochs,
        "overfit_batches": rewind and trainer.overfit_batches,
    }
    callbacks = {name for one in trainer.callbacks for name in _kinds(one)}
    for what, why in CAPABILITIES["refuses"].items():
        if there.get(what, what in callbacks):
            raise CapabilityError(f"this Trainer cannot be guarded: {what}: {why}")


def _stream(
    trainer: Any, loader: Any, to_text: Callable[[Any], str] | None, seed: int | None
) -> Stream:
    """The loader's rows, in an order that can be taken back."""
    kinds, why = _kinds(loader), ""
    if "DataLoader" not in kinds:
        why = f"its batches come from a {type(loader).__name__}, not from one DataLoader"
    elif not hasattr(loader.dataset, "__getitem__") or "IterableDataset" in _kinds(loader.dataset):
        why = f"its rows come from a {type(loader.dataset).__name__} without __getitem__"
    elif type(loader.batch_sampler).__name__ != "BatchSampler":
        why = f"its batches are made by a {type(loader.batch_sampler).__name__}"
    elif type(loader.sampler).__name__ not in _ORDERS:
        why = f"a {type(loader.sampler).__name__} has an order of its own, which would be lost"
    elif getattr(loader.sampler, "replacement", False) or getattr(
        loader.sampler, "_num_samples", None
    ) not in (None, len(loader.dataset)):
        why = "its RandomSampler draws rows otherwise than each once"
    if why:
        raise CapabilityError(
            f"this Trainer's data cannot go back: {why}. Use a DataLoader over rows with __len__ "
            "and __getitem__, or ForeshockCallback(rewind=False) and a recipe without rollback"
        )
    world = trainer.world_size
    return Stream(
        [Stage(name="train", sources={"train": loader.dataset}, repeats=None)],
        batch_size=loader.batch_size * world,
        seed=int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed,
        collate=loader.collate_fn,
        to_text=to_text,
        rank=trainer.global_rank,
        world_size=world,
    )
