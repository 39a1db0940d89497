"""Hugging Face Trainer, and what subclasses it: the Guard inside `trainer.train()`.

    trainer = Trainer(model, args, train_dataset=rows)
    ForeshockCallback("runs/a").attach(trainer)
    trainer.train()

The Trainer keeps its loop, its logs and its checkpoints. The Guard gives out the batches, so
that it can take them back and set rows aside, and stands where the optimizer's step is: it
takes the norm before clipping, clips, and makes the update or skips it exactly. After a
rollback the loop gets what comes next, and `global_step` falls.

What differs from a Trainer alone: rows come in Foreshock's order, in whole batches across the
ends of epochs, and are read in the training's own process; the schedule advances over a
skipped step, under fp16 as well, where the Trainer holds it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from foreshock.core.errors import CapabilityError, ConfigError, RunDirError, Stopped
from foreshock.core.probe import Probe
from foreshock.data.sample import text_in
from foreshock.data.stream import Stage, Stream
from foreshock.guard import Guard
from foreshock.recipes import Recipe
from foreshock.stand_in import drawn, stand_in

CAPABILITIES = {
    "title": "the Trainer of Hugging Face, and what subclasses it",
    "packages": ["transformers", "accelerate"],
    "extra": "hf",
    "yes": "watch skip rollback quarantine resume stop clip lr accumulate processes",
    "limited": {
        "fp16": "tried on CPUs with a scaler put in: the Trainer has one on GPUs only",
        "shards": "FSDP2; tried on CPUs, told to: the Trainer shards on GPUs only",
        "own_loader": "with rewind=False steps are skipped; none is taken back or resumed",
    },
    "no": {"samples": "the model gives the Trainer the mean alone"},
    "refuses": {
        "DeepSpeed": "it makes the update inside backward, where no callback comes between, and "
        "its engine is guarded in a loop of your own alone: foreshock.integrations.deepspeed",
        "FSDP1": "it flattens parameters; set fsdp_version: 2",
        "DataParallel": "it copies the model at every step; start it with torchrun",
        "LOMO": "it updates inside backward, where no gradient is left to judge",
        "auto_find_batch_size": "it begins anew with other batches; set the batch size",
        "sample packing by the sampler": "what it packs would be lost, as axolotl's is: set "
        "sample_packing: false, or rewind=False and a recipe without rollback",
    },
}

# Columns whose tokens are the text of a row: the first of these that it has. Of a pair of
# preferences it is what is to be preferred; what is rejected may well be broken.
TOKENS = (("input_ids",), ("prompt_ids", "chosen_ids"))


class ForeshockCallback(TrainerCallback):
    """Guards the Trainer that it is attached to.

    Args:
        run_dir: where the run is recorded. One that is there already is continued from its
            own snapshots, whatever `resume_from_checkpoint` says.
        recipe: see `Guard`.
        probes: see `Guard`.
        to_text: from a row to its text, for data rules and reports; by default the tokenizer
            decodes `input_ids`.
        rewind: False leaves the Trainer its own loader, which cannot go back: the recipe must
            then do without rollback. For Trainers that make their own batches, as GRPO's does.
        options: further arguments of `Guard`.

    Attributes:
        guard: the Guard of the last call of `train`; None before the first.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        recipe: Recipe | None = None,
        probes: Sequence[Probe] = (),
        to_text: Callable[[Any], str] | None = None,
        rewind: bool = True,
        **options: Any,
    ) -> None:
        self.guard: Guard | None = None
        self._run_dir = Path(run_dir)
        self._options = {"recipe": recipe, "probes": probes, "resume": None, **options}
        self._to_text = to_text
        self._rewind = rewind
        self._trainer: Any = None
        self._feed: Any = None
        self._ahead: list[Any] = []
        self._epoch = 0
        self._norm = torch.zeros(())
        self._stopped: Stopped | None = None
        self._undo = ExitStack()

    def attach(self, trainer: Trainer) -> "ForeshockCallback":
        """Join a Trainer, before `train`; returns the callback.

        Raises:
            CapabilityError: the Guard cannot follow what this Trainer does; the message says
                what and why.
            ConfigError: the callback has a Trainer already.
        """
        if self._trainer is not None:
            raise ConfigError("this ForeshockCallback is attached already; make another one")
        _check(trainer, rewind=self._rewind)
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        train, loader = trainer.train, trainer.get_train_dataloader

        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = train(*args, **kwargs)
                if self._stopped is not None:
                    raise self._stopped  # else it would pass for a finished training
                return result
            except BaseException as error:
                if self.guard is not None:
                    self.guard.__exit__(type(error), error, None)
                raise
            finally:
                self._undo.close()

        # Both stay; what `train` replaces is put back when it ends.
        trainer.train = guarded
        trainer.get_train_dataloader = lambda: self._loader(loader)
        return self

    # ---- events of the Trainer ------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self._trainer
        if trainer is None:
            raise ConfigError(
                "ForeshockCallback is among the callbacks, but does not know its Trainer: call "
                "callback.attach(trainer) before trainer.train()"
            )
        if state.global_step and not (self._run_dir / "run.json").exists():
            raise RunDirError(
                f"the Trainer resumes at step {state.global_step}, but {self._run_dir} has no run: "
                "a run that began without Foreshock has no record of the data it saw. Load the "
                "weights into the model and train without resume_from_checkpoint"
            )
        accelerator = trainer.accelerator
        self.guard = Guard(
            trainer.model_wrapped,
            trainer.optimizer.optimizer,
            self._feed,
            run_dir=self._run_dir,
            scheduler=trainer.lr_scheduler,
            scaler=accelerator.scaler,
            clip=args.max_grad_norm or None,
            accumulate=args.gradient_accumulation_steps,
            driven=True,
            max_steps=state.max_steps,
            **self._options,
        )
        self._undo.callback(self.guard.close)
        self._ahead, self._stopped = [], None
        self._norm = self._norm.to(args.device)
        stand_in(self._undo, accelerator, "backward", self._then_told(accelerator.backward))
        stand_in(self._undo, accelerator, "clip_grad_norm_", lambda *_, **__: self._norm)
        stand_in(self._undo, trainer.optimizer, "step", self._in_place_of_step())
        self._follow()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._mark_epochs(args, state, control)
        ending = state.global_step >= state.max_steps and control.should_training_stop
        if ending or (self.guard is not None and self.guard.asked_to_stop):
            # The last steps are not judged yet: they may send the run back.
            try:
                self._ahead.append(self._next())
            except StopIteration:
                return self.on_epoch_end(args, state, control)
            control.should_training_stop = False
            control.should_save = control.should_evaluate = control.should_log = False
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._stopped is not None:  # the Trainer ends in its own way, but has no time for more
            control.should_training_stop = True
        elif not self._rewind or state.global_step >= state.max_steps:
            return control
        # Else the Trainer takes so many batches for an epoch, whichever were taken back.
        control.should_save = control.should_evaluate = control.should_log = False
        return control

    # ---- what stands in the Trainer's place -----------------------------------------

    def _loader(self, own: Callable[[], Any]) -> Any:
        trainer = self._trainer
        if not self._rewind:
            loader = own()
            self._feed = _endless(loader)
            return _Batches(self._take, loader)
        if self._feed is None:
            self._feed = _stream(trainer, self._to_text)
        args = trainer.args
        if args.max_steps < 0:
            per_step = self._feed.batch_size * args.gradient_accumulation_steps
            args.max_steps = math.ceil(args.num_train_epochs * self._num_rows / per_step)
        return _Batches(self._take)

    def _take(self) -> Any:
        return self._ahead.pop() if self._ahead else self._next()

    def _next(self) -> Any:
        assert self.guard is not None
        try:
            batch = next(self.guard)
        except Stopped as stopped:
            self._stopped = stopped
            self._trainer.control.should_training_stop = True
            raise StopIteration from stopped
        self._follow()
        return batch

    def _then_told(self, backward: Callable[..., Any]) -> Callable[..., None]:
        def run(loss: torch.Tensor, **kwargs: Any) -> None:
            backward(loss, **kwargs)
            assert self.guard is not None
            self.guard.gathered(loss)

        return run

    def _in_place_of_step(self) -> Callable[..., None]:
        guard, optimizer = self.guard, self._trainer.optimizer
        assert guard is not None

        def step(closure: Any = None) -> None:
            assert closure is None
            guard.update()
            if guard.grad_norm is not None:
                self._norm.copy_(guard.grad_norm)
            optimizer._opt_called = True

        # What torch's schedules look for, lest they warn that they come first.
        step._wrapped_by_lr_sched = True  # pyright: ignore[reportFunctionMemberAccess]
        return step

    # ---- keeping step ---------------------------------------------------------------

    @property
    def _num_rows(self) -> int:
        return len(self._trainer.train_dataset)

    def _follow(self) -> None:
        """Let the Trainer's counters stand where the Guard stands."""
        trainer, guard = self._trainer, self.guard
        assert guard is not None
        if trainer.state.global_step == guard.step_number:
            return
        trainer.state.global_step = guard.step_number
        trainer._tr_loss.zero_()  # the mean loss of the logs begins anew
        trainer._globalstep_last_logged = guard.step_number
        if self._rewind:
            self._epoch = self._feed.position // self._num_rows

    def _mark_epochs(self, args: Any, state: Any, control: Any) -> None:
        """Where the stream passes the end of an epoch, do what the Trainer does there."""
        if not self._rewind:
            return
        state.epoch = self._feed.position / self._num_rows
        passed = math.floor(state.epoch) > self._epoch
        self._epoch = math.floor(state.epoch)
        if passed and state.global_step < state.max_steps:  # at the end the Trainer does it
            control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH
            control.should_save |= args.save_strategy == SaveStrategy.EPOCH


class _Batches:
    """What the Trainer iterates over, epoch after epoch."""

    def __init__(self, take: Callable[[], Any], loader: Any = None) -> None:
        self._take = take
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return drawn(self._take)

    def __len__(self) -> int:
        if self._loader is None:
            raise TypeError("this loader has no length: rows may be taken back, or set aside")
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._loader is None:
            raise AttributeError(name)
        return getattr(self._loader, name)


def train(trainer: Trainer, run_dir: str | Path, **options: Any) -> Any:
    """Train under the Guard; see `ForeshockCallback` for the options.

    Returns:
        What `trainer.train()` returns.

    Raises:
        CapabilityError: the Guard cannot follow what this Trainer does.
        Halted: the policy stopped the run.
        Stopped: the system did.
    """
    ForeshockCallback(run_dir, **options).attach(trainer)
    return trainer.train()


def _check(trainer: Any, *, rewind: bool) -> None:
    """Refuse what the Guard cannot follow, before anything is trained."""
    args, kind = trainer.args, type(trainer)
    why, known = (
        "",
        {
            "DeepSpeed": trainer.is_deepspeed_enabled,
            "FSDP1": trainer.is_fsdp_enabled and _fsdp_version(trainer) != 2,
            "DataParallel": args.n_gpu > 1,
            "LOMO": "lomo" in str(args.optim).lower(),
            "auto_find_batch_size": args.auto_find_batch_size,
            "sample packing by the sampler": rewind and getattr(args, "sample_packing", False),
        },
    )
    if found := next((what for what, there in known.items() if there), None):
        why = f"{found}: {CAPABILITIES['refuses'][found]}"
    elif rewind and kind.get_train_dataloader is not Trainer.get_train_dataloader:
        why = (
            f"{kind.__name__} makes its own loader, which cannot go back: give "
            "ForeshockCallback(rewind=False) and a recipe without rollback"
        )
    elif rewind and not _has_rows(trainer.train_dataset):
        why = (
            f"train_dataset is {_named(trainer.train_dataset)}, which cannot go back: use one "
            "with __len__ and __getitem__, or rewind=False and a recipe without rollback"
        )
    if why:
        raise CapabilityError(f"this Trainer cannot be guarded: {why}")


def _fsdp_version(trainer: Any) -> int:
    return getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1)


def _has_rows(dataset: Any) -> bool:
    iterates = isinstance(dataset, torch.utils.data.IterableDataset)
    return not iterates and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _named(thing: Any) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"


def _stream(trainer: Any, to_text: Callable[[Any], str] | None) -> Stream:
    """The Trainer's rows, in an order that can be taken back."""
    args, rows, collate = trainer.args, trainer.train_dataset, trainer.data_collator
    if hasattr(rows, "column_names"):
        rows = trainer._remove_unused_columns(rows, description="training")
    else:
        collate = trainer._get_collator_with_removed_columns(collate, description="training")
    tokenizer = trainer.processing_class

    def decoded(row: Any) -> str | None:
        for names in TOKENS if isinstance(row, Mapping) else ():
            if all(name in row for name in names):
                return "".join(str(tokenizer.decode(row[name])) for name in names)
        return text_in(row)

    return Stream(
        [Stage(name="train", sources={"train": rows}, repeats=None)],
        batch_size=trainer._train_batch_size * args.world_size,
        seed=args.seed if args.data_seed is None else args.data_seed,
        collate=collate,
        to_text=to_text or (decoded if hasattr(tokenizer, "decode") else None),
        rank=args.process_index,
        world_size=args.world_size,
    )


def _endless(loader: Any) -> Iterable[Any]:
    """A loader's batches, epoch after epoch."""
    for epoch in count():
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        yield from loader
