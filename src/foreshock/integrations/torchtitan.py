"""torchtitan's Trainer, with FSDP2 or replicas.

    trainer = config.build()
    foreshock.integrations.torchtitan.train(trainer, "runs/a")  # in the place of trainer.train()

The Trainer keeps its model, precision, compilation, checkpoints and logs. Its step is made
here, of its own parts, because it stops the training where a loss or a norm is not finite, and
clips before anyone can judge. Its loader, which says where it stands, is rewound, and batches
are set aside by their place.

What differs from `trainer.train()`: the schedule advances over a skipped step; a run goes on from
its run directory, whatever checkpoint the Trainer has loaded. Nothing here imports torchtitan.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from foreshock.core.errors import CapabilityError
from foreshock.guard import Guard
from foreshock.stand_in import drawn, stand_in

CAPABILITIES = {
    "title": "the Trainer of torchtitan",
    "packages": ["torchtitan"],
    "extra": "torch",
    "yes": "skip rollback resume stop clip lr accumulate processes shards",
    "limited": {
        "watch": "tried against a stand-in of the Trainer",
        "quarantine": "by batches of the Trainer's loader, which gives no single rows",
        "own_loader": "the Trainer's goes back",
    },
    "no": {
        "samples": "forward_backward_step gives a sum over tokens",
        "fp16": "the Trainer has no scaler",
    },
    "refuses": {
        "pipeline, context, expert, tensor parallelism": "never tried; FSDP2 and replicas are",
        "several model parts or optimizers": "a skipped step must skip all",
        "hooks on the optimizers' step": "they would be left out, as load balancing of experts is",
        "CUDA graphs": "gradients stay in fixed memory: set training.disable_cuda_graphs",
    },
}
_IGNORED = -100  # the label of a token that is not predicted


def train(trainer: Any, run_dir: str | Path, **options: Any) -> None:
    """Train under the Guard.

    Args:
        trainer: as its configuration builds it, before training.
        run_dir: where the run is recorded; a run that is there is continued.
        options: further arguments of `Guard`, but for those that the Trainer gives.

    Raises:
        CapabilityError: the Guard cannot follow what this Trainer does.
        Halted: the policy stopped the run.
        Stopped: the system did.
    """
    _check(trainer)
    with ExitStack() as undo:
        guarded = _Guarded(trainer, run_dir, options, undo)
        for name in ("batch_generator", "train_step", "should_continue_training"):
            stand_in(undo, trainer, name, getattr(guarded, name))
        trainer.train()


class _Tokens:
    """How many tokens a Trainer has seen; its step follows the Guard's."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, int]:
        return {"ntokens_seen": int(self._trainer.ntokens_seen)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._trainer.ntokens_seen = state["ntokens_seen"]


class _Guarded:
    """What stands in the place of three of a Trainer's methods."""

    def __init__(
        self, trainer: Any, run_dir: str | Path, options: dict[str, Any], undo: ExitStack
    ) -> None:
        self._trainer = trainer
        self._generate = trainer.batch_generator
        self._options = {"run_dir": run_dir, "resume": None, **options}
        self._undo = undo
        self._ahead: list[Any] = []
        self._guard: Any = None

    def batch_generator(self, loader: Any) -> Iterator[Any]:
        """Called once, when the Trainer has loaded its checkpoint."""
        trainer = self._trainer
        began_at, optimizer = trainer.step, trainer.optimizers.optimizers[0]
        self._guard = self._undo.enter_context(
            Guard(
                trainer.model_parts[0],
                optimizer,
                loader,
                scheduler=trainer.lr_schedulers,
                clip=trainer.config.training.max_norm or None,
                accumulate=trainer.gradient_accumulation_steps,
                max_steps=trainer.config.training.steps,
                driven=True,
                **self._options,
            )
        )
        if began_at and not self._guard.attempt:
            raise CapabilityError(
                f"the Trainer begins at step {began_at} of a checkpoint, of which no record is in "
                f"{self._options['run_dir']}: begin with Foreshock, or without loading a step"
            )
        self._guard.track("torchtitan", _Tokens(trainer))
        trainer.step = self._guard.step_number
        return self._generate(drawn(self._take))

    def should_continue_training(self) -> bool:
        """Before the last step counts as the last, the Guard judges it: time may go back."""
        if self._trainer.step < self._trainer.config.training.steps:
            return True
        try:
            self._ahead.append(next(self._guard))
        except StopIteration:
            return False
        self._trainer.step = self._guard.step_number
        return True

    def train_step(self, batches: Iterator[Any]) -> None:
        """Take the batches of a step, and make it."""
        trainer, guard = self._trainer, self._guard
        # What a checkpoint still copies from must not be written to, nor gone back in.
        trainer.checkpointer.maybe_wait_for_staging()
        lr_metrics = trainer.lr_schedulers.get_metrics()
        taken = [next(batches) for _ in range(trainer.gradient_accumulation_steps)]
        trainer.step = guard.step_number + 1
        num_own = torch.stack([(labels != _IGNORED).sum() for _, labels in taken]).sum()
        num_all = self._sum(num_own)
        own_loss = torch.zeros((), device=trainer.device)
        for inputs, labels in taken:
            loss = trainer.forward_backward_step(
                input_dict={key: self._placed(value) for key, value in inputs.items()},
                labels=self._placed(labels),
                global_valid_tokens=num_all,
            ).detach()
            loss = loss.to_local() if hasattr(loss, "to_local") else loss
            own_loss += loss
            guard.gathered(loss * dist.get_world_size())  # whose mean over ranks is the loss
        guard.update()
        optimizer = trainer.optimizers.optimizers[0]
        optimizer._opt_called = True  # if the first update was skipped: torch would warn
        trainer.lr_schedulers.step()
        if trainer.metrics_processor.should_log(trainer.step):
            self._log(own_loss, num_own, num_all, lr_metrics)

    def _take(self) -> Any:
        return self._ahead.pop() if self._ahead else next(self._guard)

    def _placed(self, value: Any) -> Any:
        return value.to(self._trainer.device) if isinstance(value, torch.Tensor) else value

    def _sum(self, value: torch.Tensor, how: Any = None) -> torch.Tensor:
        total = value.detach().clone().to(self._trainer.device)
        dist.all_reduce(total, op=dist.ReduceOp.SUM if how is None else how)
        return total

    def _log(
        self,
        own_loss: torch.Tensor,
        num_own: torch.Tensor,
        num_all: torch.Tensor,
        lr_metrics: dict[str, Any],
    ) -> None:
        trainer = self._trainer
        seen = self._sum(torch.tensor(trainer.ntokens_seen, dtype=torch.int64))
        own_mean = own_loss * num_all / num_own.to(own_loss.device)
        trainer.metrics_processor.log(
            trainer.step,
            float(self._sum(own_loss)),
            float(self._sum(own_mean, dist.ReduceOp.MAX)),
            float(self._guard.grad_norm),
            extra_metrics={"n_tokens_seen": int(seen), **lr_metrics},
        )


def _check(trainer: Any) -> None:
    """Refuse what the Guard cannot follow, before anything is trained."""
    dims, training = trainer.parallel_dims, trainer.config.training
    hooks = trainer.optimizers
    parallel, several, hooked, graphs = CAPABILITIES["refuses"]
    found = ""
    if any(getattr(dims, f"{kind}_enabled", False) for kind in ("pp", "cp", "ep", "tp")):
        found = parallel
    elif len(trainer.model_parts) != 1 or len(trainer.optimizers.optimizers) != 1:
        found = several
    elif hooks._optimizer_step_pre_hooks or hooks._optimizer_step_post_hooks:
        found = hooked
    elif trainer.device.type == "cuda" and not getattr(training, "disable_cuda_graphs", True):
        found = graphs
    if found:
        why = CAPABILITIES["refuses"][found]
        raise CapabilityError(f"this Trainer cannot be guarded: {found}: {why}")
