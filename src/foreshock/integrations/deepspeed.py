"""DeepSpeed engines with ZeRO stages 0 to 3, in a loop of the user's own.

    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    guard = foreshock.integrations.deepspeed.guard(engine, stream, run_dir="runs/a")
    for batch in guard:
        guard.step(loss_fn(engine, batch))

`step` stands for `engine.backward(loss)` and `engine.step()`. Clipping, accumulation, precision
and the schedule are those of the engine's configuration.

Under ZeRO a rank trains its part of flat groups of weights. The Guard sees each group as one
DTensor that is sharded over the ranks, and so are its gradient and its moments: what it captures
and restores are those, from which the weights of the model follow. Gradients are joined and
partitioned by DeepSpeed, and its own step makes the update, with gradients that were judged and
clipped before.

What differs from the same loop without the Guard: the schedule advances over a skipped step; a
step that the data's end cuts short is not made.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine  # pyright: ignore[reportMissingImports]
from torch.utils._pytree import tree_map

from foreshock.core.errors import CapabilityError, ConfigError, SnapshotError
from foreshock.flat_groups import FlatGroups, Groups
from foreshock.guard import Guard
from foreshock.own_loop import OwnLoop
from foreshock.stand_in import stand_in

CAPABILITIES = {
    "title": "engines of DeepSpeed, ZeRO stages 0 to 3",
    "packages": ["deepspeed"],
    "extra": "deepspeed",
    "yes": "samples skip rollback quarantine resume stop clip lr accumulate processes",
    "limited": {
        "watch": "gradients, weights and moments by ZeRO's groups, not by layers",
        "shards": "those of ZeRO, on as many ranks as before",
        "own_loader": "steps are skipped; none is taken back, and nothing is resumed",
    },
    "no": {
        "fp16": "the engine keeps the loss scale to itself; use bf16",
    },
    "refuses": {
        "pipeline engines": "they run forward, backward and update in one call",
        "fp16": "the engine keeps the loss scale to itself; use bf16",
        "bf16 under stage 0": "it keeps fp32 weights of its own; use stage 1",
        "offloading": "gradients are where they cannot be judged in one place",
        "1-bit optimizers and Muon": "they keep a state beside that of the optimizer",
        "model, tensor, sequence and expert parallelism": "they were never tried",
        "gradients managed outside": "the engine does not know where a step ends (DeepCompile, "
        "managed_gradient_accumulation: false)",
        "hpZ and MiCS": "weights are partitioned a second time",
        "quantized weights or gradients": "what is rounded is not captured",
        "data efficiency and the like": "they change the training by a state that stays",
        "other optimizers around the optimizer": "they are none of ZeRO's that are known here "
        "(BF16_Optimizer: fp32 accumulation under stage 1)",
        "an engine within a step": "its first micro-steps were not seen",
        "weights that are not trained, under stage 3": "they are not captured; use stage 2",
    },
}
_MOVING = (  # some of them of earlier versions
    "amp",
    "autotuning",
    "compression_training",
    "curriculum_learning",
    "data_efficiency",
    "eigenvalue",
    "elasticity",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_gradients",
)
_WRAPPERS = {
    1: "DeepSpeedZeroOptimizer",
    2: "DeepSpeedZeroOptimizer",
    3: "DeepSpeedZeroOptimizer_Stage3",
}
_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


def guard(
    engine: Any, stream: Any, *, run_dir: str | Path, resume: bool | None = None, **options: Any
) -> OwnLoop:
    """Guard a loop that trains with a DeepSpeed engine.

    Args:
        engine: of `deepspeed.initialize`, before its first step.
        stream: a Stream with this rank and the number of ranks; or another source of batches,
            see `Guard`.
        run_dir: where the run is recorded.
        resume: see `Guard`; by default a run that is there is continued.
        options: further arguments of `Guard`, but for those that the engine's configuration
            gives: scheduler, scaler, clip, accumulate.

    Raises:
        CapabilityError: the Guard cannot follow what this engine does.
        ConfigError: it is no engine, or an argument is not allowed.
    """
    if not isinstance(engine, DeepSpeedEngine):
        raise ConfigError(
            f"the engine is a {type(engine).__name__}: give the one of deepspeed.initialize"
        )
    if given := sorted({"scheduler", "scaler", "clip", "accumulate"} & options.keys()):
        raise ConfigError(f"{', '.join(given)}: set it in DeepSpeed's configuration")
    _check(engine)
    stage, world = int(engine.zero_optimization_stage()), dist.get_world_size()
    name = options.pop("name", "") or type(engine.module).__name__
    parts, layout = _Plain(engine), ""
    if stage:
        groups = _LaterStage(engine) if stage == 3 else _EarlyStage(engine)
        parts, layout = FlatGroups(engine.module, groups), _layout(engine, groups)
        name = f"{name} under ZeRO-{stage} on {world} rank{'s'[: world > 1]}"
    accumulate = engine.gradient_accumulation_steps()
    inner = Guard(
        parts.model,
        parts.optimizer,
        stream,
        run_dir=run_dir,
        scheduler=engine.lr_scheduler,
        clip=engine.gradient_clipping() or None,
        accumulate=accumulate,
        name=name,
        driven=True,
        resume=resume,
        **options,
    )
    try:
        inner.track("deepspeed", _Counts(engine, layout))
    except BaseException:
        inner.close()
        raise

    num_known = len(inner.records)

    def place(batch: Any) -> Any:
        nonlocal num_known
        fresh, num_known = inner.records[num_known:], len(inner.records)
        if any(record["kind"] == "state_edited" for record in fresh):
            parts.follow()
        return tree_map(
            lambda one: one.to(engine.device) if isinstance(one, torch.Tensor) else one, batch
        )

    def backward(loss: torch.Tensor) -> torch.Tensor:
        parts.begin_micro_step()
        share = engine.backward(loss)
        if engine.is_gradient_accumulation_boundary():
            parts.take_gradients()
        return share.detach()

    def schedule(last: bool) -> None:
        with ExitStack() as undo:
            # What is left of the engine's step: its counts, its schedule, its logs.
            stand_in(undo, engine.optimizer, "step", _nothing)
            stand_in(undo, engine, "clip_fp32_gradients", _nothing)
            if last:
                stand_in(undo, engine.optimizer, "overflow", not parts.took_step)
                engine.basic_optimizer._opt_called = (
                    True  # if the first was skipped: torch would warn
                )
            engine.step()
        if last:
            engine._global_grad_norm = inner.grad_norm
            if not parts.took_step and engine.lr_scheduler is not None:
                engine.lr_scheduler.step()  # which an engine holds over a skipped step

    return OwnLoop(
        inner,
        accumulate=accumulate,
        place=place,
        around=lambda last: contextlib.nullcontext(),
        backward=backward,
        schedule=schedule,
    )


def _nothing(*_args: Any, **_named: Any) -> None:
    """Stands where the Guard has done it already."""


_nothing._wrapped_by_lr_sched = True  # pyright: ignore[reportFunctionMemberAccess] # torch would warn


def _layout(engine: Any, groups: Groups) -> str:
    """Digest of which weights are where in the groups."""
    names = [[engine.param_names[one] for one in group] for group in groups.members]
    told = json.dumps([names, list(groups.setting_of), dist.get_world_size()])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


class _Counts:
    """What an engine counts, and how its weights are laid out."""

    def __init__(self, engine: Any, layout: str) -> None:
        self._engine = engine
        self._layout = layout

    def state_dict(self) -> dict[str, Any]:
        counts = {name: int(getattr(self._engine, name)) for name in _COUNTS}
        return {**counts, "layout": self._layout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["layout"] != self._layout:
            raise SnapshotError(
                "the weights are laid out otherwise in ZeRO's groups than when the run began: keep "
                "the stage, the number of ranks, the parameter groups and sub_group_size"
            )
        for name in _COUNTS:
            setattr(self._engine, name, state[name])


class _Plain:
    """Stage 0: weights, gradients and moments are whole on every rank, and where they belong."""

    def __init__(self, engine: Any) -> None:
        self.model = engine.module
        self.optimizer = engine.basic_optimizer
        self.took_step = False
        self.optimizer.register_step_post_hook(self._stepped)

    def begin_micro_step(self) -> None:
        self.took_step = False

    def take_gradients(self) -> None: ...

    def follow(self) -> None: ...

    def _stepped(self, *_: Any) -> None:
        self.took_step = True


class _EarlyStage:
    """Stages 1 and 2: whole weights on every rank, followed by a flat fp32 part of each group."""

    def __init__(self, engine: Any) -> None:
        self.zero = engine.optimizer
        self.optimizer: torch.optim.Optimizer = self.zero.optimizer
        self.flat: Sequence[torch.Tensor] = list(self.zero.single_partition_of_fp32_groups)
        self.setting_of: Sequence[int] = list(range(len(self.flat)))
        self.members: Sequence[Sequence[torch.Tensor]] = self.zero.round_robin_bit16_groups

    def gradient(self, place: int) -> torch.Tensor:
        found = self.zero.averaged_gradients[place]
        flat = getattr(found, "flat_partition", None)
        if flat is None:
            flat = self.zero.flatten_dense_tensors_aligned(found, self.flat[place].numel())
        return flat.view(-1)

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        for place, one in enumerate(gradients):
            self.zero.averaged_gradients[place] = [one]
        with ExitStack() as undo:
            stand_in(undo, self.zero, "clip_grad", 0.0)
            stand_in(undo, self.zero, "compute_grad_norm", False)
            stand_in(undo, self.zero, "check_grad_overflow", False)
            self.zero.step()

    def discard(self) -> None:
        with ExitStack() as undo:
            stand_in(undo, self.zero, "check_grad_overflow", True)
            stand_in(undo, self.zero, "has_overflow", lambda *_, **__: True)
            self.zero.step()
        for place in self.zero.all_grad_tensors:  # of a step that was not whole yet
            self.zero.all_grad_tensors[place] = None

    def follow(self) -> None:
        self.zero.update_lp_params()


class _LaterStage:
    """Stage 3: each rank has a part of each weight, and of sub-groups of them in fp32."""

    def __init__(self, engine: Any) -> None:
        self.zero = engine.optimizer
        self.optimizer: torch.optim.Optimizer = self.zero.optimizer
        self.flat: Sequence[torch.Tensor] = list(self.zero.fp32_partitioned_groups_flat)
        self.setting_of: Sequence[int] = [
            self.zero.sub_group_to_group_id[place] for place in range(len(self.flat))
        ]
        self.members: Sequence[Sequence[torch.Tensor]] = self.zero.fp16_groups
        self._clear_padding()

    def gradient(self, place: int) -> torch.Tensor:
        return self.zero.flatten(self.zero.averaged_gradients[place])

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        for place, one in enumerate(gradients):
            self.zero.averaged_gradients[place] = [one]
        ones = [torch.ones((), device=one.device) for one in self.flat]
        with ExitStack() as undo:
            stand_in(undo, self.zero, "clip_grad", 0.0)
            stand_in(undo, self.zero, "_get_norm_groups", lambda: ones)
            self.zero.step()

    def discard(self) -> None:
        def overflow(*_args: Any, **_named: Any) -> bool:
            self.zero.overflow = True
            return True

        with ExitStack() as undo:
            stand_in(undo, self.zero, "_overflow_check_and_loss_scale_update", overflow)
            self.zero.step()

    def follow(self) -> None:
        zero = self.zero
        zero._partition_all_parameters()
        for place in range(len(self.flat)):
            zero._reassign_or_swap_out_partitioned_parameters(place)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def _clear_padding(self) -> None:
        """What fills the last parts up to equal length is memory as it was found."""
        rank = dist.get_rank()
        with torch.no_grad():
            for flat, group in zip(self.flat, self.zero.fp16_groups, strict=True):
                begin = 0
                for one in group:
                    size = one.partition_numel()
                    real = min(max(one.ds_numel - rank * size, 0), size)
                    flat[begin + real : begin + size].zero_()
                    begin += size


def _check(engine: Any) -> None:
    """Refuse what the Guard cannot follow, before anything is trained."""
    stage, optimizer = int(engine.zero_optimization_stage()), engine.optimizer
    zero, raw = engine._config.zero_config, engine._config._param_dict
    kind, wrapper = type(engine.basic_optimizer).__name__, type(optimizer).__name__
    moved = [
        str(getattr(one, "device", "")) for one in (zero.offload_optimizer, zero.offload_param)
    ]
    again = engine.zero_hpz_partition_size() > 1 or getattr(zero, "mics_shard_size", -1) > 0
    foreign = kind.lower().startswith(("onebit", "zeroone")) or "muon" in kind.lower()
    holds = {
        "pipeline engines": engine.pipeline_parallelism,
        "fp16": engine.fp16_enabled() or engine.torch_autocast_enabled(),
        "bf16 under stage 0": stage == 0 and engine.bfloat16_enabled(),
        "offloading": any(one.endswith(("cpu", "nvme")) for one in moved),
        "1-bit optimizers and Muon": foreign,
        "model, tensor, sequence and expert parallelism": engine.has_moe_layers
        or engine.sequence_parallel_size > 1
        or engine.dp_world_size != dist.get_world_size(),
        "gradients managed outside": not engine.managed_gradient_accumulation()
        or engine.is_deepcompile_enabled(),
        "hpZ and MiCS": stage == 3 and again,
        "quantized weights or gradients": engine.zero_quantized_weights()
        or engine.zero_quantized_gradients(),
        "data efficiency and the like": any(_is_on(raw.get(key)) for key in _MOVING),
        "other optimizers around the optimizer": wrapper != _WRAPPERS.get(stage, kind),
        "an engine within a step": engine.micro_steps % engine.gradient_accumulation_steps() != 0,
    }
    found = [what for what, there in holds.items() if there]
    if not found and stage == 3:
        trained = sum(map(len, optimizer.fp16_groups))
        if trained != len(list(engine.module.parameters())):
            found = ["weights that are not trained, under stage 3"]
    if found:
        reasons = [f"{what}: {CAPABILITIES['refuses'][what]}" for what in found]
        raise CapabilityError(f"this engine cannot be guarded: {'; '.join(reasons)}")


def _is_on(setting: Any) -> bool:
    return bool(setting.get("enabled", True) if isinstance(setting, Mapping) else setting)
