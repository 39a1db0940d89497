"""Megatron-LM: watched and skipped in the process, gone back by a restart.

    from megatron.training import training
    foreshock.integrations.megatron.install(training, "runs/a")  # before pretrain(…)

Megatron-LM keeps its model, optimizer and data to itself: what the Guard trains here is a
stand-in of one number, whose gradient is the norm of Megatron's, and whose batches are the
numbers of its iterations. So the gate, the detectors, the diagnosis, the policy, the journal and
the quarantine are those of any run. A skip is what Megatron does where it finds an Inf:
`prepare_grads` returns True. To go back, all processes end with `EXIT_CODE`, and the arguments
to start again with are in the run directory.

Nothing here imports Megatron-LM.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from foreshock.core.errors import CapabilityError, ConfigError, LoopError
from foreshock.durable import Disk, RealDisk, write_file
from foreshock.guard import Guard
from foreshock.recipes import Cadence, Recipe, standard

EXIT_CODE: Final = 75
"""Of processes that are to be started again: EX_TEMPFAIL of sysexits.h."""

CAPABILITIES = {
    "title": "Megatron-LM, gone back by restarts",
    "packages": ["megatron-core"],
    "extra": "torch",
    "yes": "skip quarantine accumulate processes",
    "limited": {
        "watch": "loss, gradient norm and learning rate; tried against a stand-in",
        "rollback": "by a restart from Megatron's own checkpoint",
        "resume": "by Megatron's own checkpoint, up to where the record ends",
        "stop": "by Megatron's own --exit-signal-handler",
        "own_loader": "the data is Megatron's; iterations are set aside, not rows",
    },
    "no": {
        "samples": "the loss function gives a sum over tokens",
        "clip": "the setting is Megatron's own",
        "lr": "the setting is Megatron's own",
        "fp16": "its dynamic loss scale moves with every skip",
    },
    "untested": "shards",
    "refuses": {"DynamicGradScaler": "fp16's loss scale moves with every skip: train in bf16"},
}
_ACTIONS: Final = frozenset({"skip_update", "rollback", "quarantine", "pause", "halt"})

SKIP_ARGS: Final = "megatron-skip.args"
"""What every start needs from now on: iterations that are never trained."""

CHECKPOINT_ARGS: Final = "megatron-ckpt.args"
"""Which checkpoint to start from, until Megatron has written its next one."""


def install(training: Any, run_dir: str | Path, **options: Any) -> None:
    """Let Megatron's training be watched; before `pretrain`.

    Args:
        training: the module `megatron.training.training`, of which two functions are wrapped.
        run_dir: where the run is recorded, on a file system that all ranks share.
        options: see `watch`.
    """
    build, step = training.setup_model_and_optimizer, training.train_step
    watches: list[Watch] = []

    @functools.wraps(build)
    def build_watched(*args: Any, **named: Any) -> Any:
        built, given = build(*args, **named), training.get_args()
        if given.save is None:
            raise ConfigError("without --save there is no checkpoint to go back to")
        watches.append(watch(run_dir, checkpoints=given.save, **options))
        watches[-1].attach(built[1], iteration=lambda: given.curr_iteration + 1)
        return built

    @functools.wraps(step)
    def step_watched(forward_step_func: Any, *args: Any, **named: Any) -> Any:
        return step(watches[-1].forward_step(forward_step_func), *args, **named)

    training.setup_model_and_optimizer = build_watched
    training.train_step = step_watched


def watch(
    run_dir: str | Path,
    *,
    checkpoints: str | Path,
    recipe: Recipe | None = None,
    disk: Disk | None = None,
    **options: Any,
) -> "Watch":
    """Begin to watch, or take up a run that is there; on every rank, after torch.distributed.

    Args:
        run_dir: where the run is recorded, on a file system that all ranks share.
        checkpoints: where Megatron saves.
        recipe: by default the standard one, of which only what needs no model is taken.
        disk: where files go.
        options: further arguments of `Guard`.

    Raises:
        ConfigError: an argument is not allowed.
        RunDirError: the run directory cannot be used.
    """
    if "max_steps" in options:
        raise ConfigError("max_steps: Megatron ends by itself, by --train-iters")
    return Watch(
        Path(run_dir),
        Path(checkpoints),
        _possible(standard_recipe() if recipe is None else recipe),
        disk if disk is not None else RealDisk(),
        options,
    )


def standard_recipe() -> Recipe:
    """The standard recipe of loss, gradient norm and schedule; each iteration is kept.

    So the record is never older than a checkpoint of Megatron's, however it ends.
    """
    cadence = Cadence(
        memory_keep=0, memory_steps=0, disk_steps=1, disk_keep=200, asynchronous=False
    )
    kept = {"loss", "gradients", "schedule"}
    recipe = standard({"rules": False, "level": "minimal"})
    signals = tuple(one for one in recipe.signals if one.name in kept)
    return dataclasses.replace(recipe, signals=signals, cadence=cadence, lag_steps=1)


def _possible(recipe: Recipe) -> Recipe:
    """Without rungs that change Megatron's own settings or state, which nothing here reaches."""
    beyond = {name for name, rung in recipe.policy.rungs.items() if set(rung.names) - _ACTIONS}
    return dataclasses.replace(recipe, policy=recipe.policy.without(frozenset(beyond)))


class Watch:
    """Stands between Megatron's gradients and its update."""

    def __init__(
        self, run_dir: Path, checkpoints: Path, recipe: Recipe, disk: Disk, options: dict[str, Any]
    ) -> None:
        self._run_dir, self._checkpoints, self._disk = run_dir, checkpoints, disk
        on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
        self._device = torch.device(f"cuda:{torch.cuda.current_device()}" if on_gpu else "cpu")
        self._model = _Norm().to(self._device)
        self._optimizer = _Told(self._model.parameters(), {"lr": 0.0})
        self._iterations = _Iterations()
        self.guard = Guard(
            self._model,
            self._optimizer,
            self._iterations,
            run_dir=run_dir,
            recipe=recipe,
            driven=True,
            resume=options.pop("resume", None),
            disk=disk,
            signals=options.pop("signals", ()),  # Megatron has its own way to end
            name=options.pop("name", "Megatron-LM"),
            **options,
        )
        """The Guard: its journal, its incidents, its thresholds."""
        self._is_first = not dist.is_initialized() or dist.get_rank() == 0
        self._losses: list[torch.Tensor] = []
        self._next: int | None = None
        self._left_out: set[int] = set()
        self.guard.track("megatron", _LeftOut(self._left_out))
        self._write_arguments(restart=False)

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Megatron's `forward_step_func`, whose loss function is listened to."""

        @functools.wraps(function)
        def forward_step(*args: Any, **named: Any) -> Any:
            output, loss_function = function(*args, **named)

            def listened(*given: Any, **too: Any) -> Any:
                found = loss_function(*given, **too)
                first = next(iter(found[-1].values()))
                self._losses.append(first.detach().reshape(-1).double())
                return found

            return output, listened

        return forward_step

    def attach(self, optimizer: Any, *, iteration: Callable[[], int]) -> None:
        """Put the gate into a MegatronOptimizer; once, after Megatron has loaded its checkpoint.

        Args:
            optimizer: of `setup_model_and_optimizer`.
            iteration: the number of the iteration in progress, from 1.

        Raises:
            CapabilityError: it has not what is needed, or an fp16 loss scale of its own.
        """
        needed = ("prepare_grads", "get_grad_norm", "param_groups")
        members = [optimizer, *getattr(optimizer, "chained_optimizers", [])]
        scalers = {type(getattr(one, "grad_scaler", None)).__name__ for one in members}
        for name in scalers & CAPABILITIES["refuses"].keys():
            raise CapabilityError(f"{name}: {CAPABILITIES['refuses'][name]}")
        if missing := [name for name in needed if not hasattr(optimizer, name)]:
            raise CapabilityError(f"this optimizer has no {', '.join(missing)}")
        prepare = optimizer.prepare_grads

        def prepare_grads() -> bool:
            found_inf = bool(prepare())
            norm = math.inf if found_inf else float(optimizer.get_grad_norm())
            lr = float(optimizer.param_groups[0]["lr"]) if optimizer.param_groups else 0.0
            return not self._judge(iteration(), norm, lr) or found_inf

        optimizer.prepare_grads = prepare_grads

    def close(self) -> None:
        """Stop watching; see `Guard.close`."""
        self.guard.close()

    # ---- one iteration --------------------------------------------------------------

    def _judge(self, iteration: int, norm: float, lr: float) -> bool:
        """Whether an iteration is to be committed.

        Raises:
            SystemExit: the run goes back, by a restart.
            LoopError: this is no iteration of the run as it is recorded.
        """
        loss = self._mean_loss()
        if self._next is None:
            self._advance()
        assert self._next is not None
        if iteration < self._next:  # of a checkpoint before the record's end: judged already
            return iteration not in self._left_out and math.isfinite(norm)
        if iteration > self._next:
            self._write_arguments(restart=True)
            raise LoopError(
                f"Megatron trains iteration {iteration}, and the record in {self._run_dir} goes on "
                f"with {self._next}: start it with the arguments in {self._run_dir}/megatron-*.args"
            )
        self._optimizer.param_groups[0]["lr"] = lr
        self._model.norm.grad = torch.full_like(self._model.norm, norm)
        self.guard.gathered(torch.tensor(loss, device=self._device))
        verdict = self.guard.update()
        if not verdict.committed:
            self._left_out.add(iteration)
        self._forget_checkpoint()
        self._advance()  # at once: the record is to be no older than Megatron's checkpoint
        return bool(verdict.committed)

    def _advance(self) -> None:
        """What is due between two iterations; and which comes next.

        Raises:
            SystemExit: the run goes back.
        """
        attempt, begun = self.guard.attempt, self.guard.step_number > 0
        self._next = int(next(self.guard))
        if begun and self.guard.attempt != attempt:
            self._write_arguments(restart=True)
            self.guard.close()
            raise SystemExit(EXIT_CODE)

    def _mean_loss(self) -> float:
        """The loss over all tokens of all ranks; what only the last stage knows, all hear."""
        heard, self._losses = self._losses, []
        total = torch.zeros(2, dtype=torch.float64, device=self._device)
        for one in heard:  # the sum over tokens and their number; or, as of old, a mean
            mean = torch.stack([one[0], torch.ones_like(one[0])])
            total += (one if one.numel() == 2 else mean).to(total.device)
        if dist.is_initialized():
            dist.all_reduce(total)
        if not float(total[1]):
            raise LoopError(
                "no loss was heard on any rank: give pretrain the forward_step that "
                "watch.forward_step returns"
            )
        return float(total[0] / total[1])

    # ---- going back -----------------------------------------------------------------

    def _write_arguments(self, *, restart: bool) -> None:
        """Write what Megatron is to be started with; no rank ends before it is there."""
        if self._is_first:
            self._write(restart=restart)
        if dist.is_initialized():
            dist.barrier()

    def _write(self, *, restart: bool) -> None:
        held = self.guard._feed.stream.ledger
        held_by = [held.held_by(entry.entry_id) for entry in held.entries]
        skipped = sorted({index + 1 for keys in held_by for _, index in keys})
        text = f"--iterations-to-skip {' '.join(map(str, skipped))}" if skipped else ""
        write_file(self._disk, self._run_dir / SKIP_ARGS, [f"{text}\n".encode()])
        if restart:
            assert self._next is not None
            first = self._next - 1
            there = [one for one in self._saved() if one <= first]
            nowhere = f"--load {self._run_dir / 'no-checkpoint'}"  # it begins anew
            chosen = f"--ckpt-step {max(there)}" if there else nowhere
            write_file(self._disk, self._run_dir / CHECKPOINT_ARGS, [f"{chosen}\n".encode()])

    def _saved(self) -> list[int]:
        """Iterations of which Megatron has a checkpoint."""
        names = [one.name for one in self._checkpoints.glob("iter_*")]
        return [int(found[1]) for one in names if (found := re.fullmatch(r"iter_(\d+)", one))]

    def _forget_checkpoint(self) -> None:
        """Megatron has written a checkpoint since the restart: the next start takes that one."""
        chosen = self._run_dir / CHECKPOINT_ARGS
        tracker = self._checkpoints / "latest_checkpointed_iteration.txt"
        if not self._is_first or not chosen.exists() or not tracker.exists():
            return
        if tracker.stat().st_mtime_ns > chosen.stat().st_mtime_ns:
            chosen.unlink()


class _Norm(torch.nn.Module):
    """One number, whose gradient is the norm of all."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(torch.zeros(1))


class _Told(torch.optim.Optimizer):
    """Makes no update: Megatron does."""

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


class _LeftOut:
    """The iterations whose update was not made, which are left out again when they come again."""

    def __init__(self, numbers: set[int]) -> None:
        self._numbers = numbers

    def state_dict(self) -> dict[str, list[int]]:
        return {"numbers": sorted(self._numbers)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self._numbers.clear()
        self._numbers.update(state["numbers"])


class _Iterations:
    """Numbers of iterations, from 1, as a loader that says where it stands."""

    def __init__(self) -> None:
        self._given = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self._given += 1
            yield self._given

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._given = state["given"]
