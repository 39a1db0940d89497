"""Accelerate, in a loop of the user's own.

    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    guard = foreshock.integrations.accelerate.guard(
        accelerator, model, optimizer, stream, run_dir="runs/a", scheduler=scheduler, clip=1.0
    )
    for batch in guard:
        guard.step(loss_fn(model, batch))

`step` stands for `accelerator.backward`, `clip_grad_norm_`, the optimizer's and the schedule's
step and `zero_grad`. Batches are on the accelerator's device. `gradient_accumulation_steps`
holds as under `accelerator.accumulate`, which runs around each batch: `sync_gradients` says
what it always does. The Stream is not prepared, and gives each process its own share.

What differs from the same loop without the Guard: the schedule advances over a skipped step,
under fp16 as well, where Accelerate holds it; a step that the data's end cuts short is not
made. As ever with Accelerate, a prepared schedule takes `num_processes` steps for one of the
optimizer's; with `split_batches` one, and with `step_scheduler_with_optimizer=False` one a batch.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import send_to_device

from foreshock.core.errors import CapabilityError, ConfigError
from foreshock.guard import Guard
from foreshock.own_loop import OwnLoop

CAPABILITIES = {
    "title": "a loop with Accelerate",
    "packages": ["accelerate"],
    "extra": "hf",
    "yes": "watch samples skip rollback quarantine resume stop clip lr accumulate processes",
    "limited": {
        "fp16": "tried on CPUs with a scaler put in: Accelerate has one on GPUs only",
        "shards": "FSDP2; tried on CPUs, told to: Accelerate shards on GPUs only",
        "own_loader": "steps are skipped; none is taken back, and nothing is resumed",
    },
    "refuses": {
        "DeepSpeed": "it makes the update inside the engine; that is guarded in a loop of your "
        "own, without Accelerate: foreshock.integrations.deepspeed",
        "Megatron-LM": "it runs forward, backward and update in one call; nothing is between",
        "XLA": "gradients are joined and read lazily there; this was never tried",
        "FSDP1": "it flattens parameters; set fsdp_version: 2",
        "LOMO": "it updates inside backward, where no gradient is left to judge",
    },
}


def guard(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: Any,
    stream: Any,
    *,
    run_dir: str | Path,
    scheduler: Any = None,
    resume: bool | None = None,
    **options: Any,
) -> OwnLoop:
    """Guard a loop that trains with an Accelerator.

    Args:
        accelerator: whose backward pass, precision, accumulation and devices are used.
        model: as prepared.
        optimizer: as prepared.
        stream: a Stream with `rank=accelerator.process_index` and
            `world_size=accelerator.num_processes`; or another source of batches, see `Guard`.
        run_dir: where the run is recorded.
        scheduler: prepared or not; stepped by the loop.
        resume: see `Guard`; by default a run that is there is continued.
        options: further arguments of `Guard`.

    Raises:
        CapabilityError: the Guard cannot follow what this Accelerator does.
        ConfigError: the optimizer is not prepared, or an argument is not allowed.
    """
    _check(accelerator, optimizer)
    prepared = isinstance(scheduler, AcceleratedScheduler)
    raw: Any = optimizer.optimizer
    accumulate = accelerator.gradient_accumulation_steps
    inner = Guard(
        getattr(model, "_orig_mod", model),  # without torch.compile's wrapper
        raw,
        stream,
        run_dir=run_dir,
        scheduler=scheduler.scheduler if prepared else scheduler,
        scaler=accelerator.scaler,
        accumulate=accumulate,
        driven=True,
        resume=resume,
        **options,
    )

    def around(last: bool) -> Any:
        accelerator.step = accumulate - 1 if last else 0  # it counts one further
        return accelerator.accumulate(model)

    def backward(loss: torch.Tensor) -> torch.Tensor:
        accelerator.backward(loss)
        return loss.detach() / accumulate

    def schedule(last: bool) -> None:
        if scheduler is not None and (prepared or last):
            raw._opt_called = True  # if the first update was skipped: torch would warn
            scheduler.step()

    return OwnLoop(
        inner,
        accumulate=accumulate,
        place=lambda batch: send_to_device(batch, accelerator.device),
        around=around,
        backward=backward,
        schedule=schedule,
    )


def _check(accelerator: Any, optimizer: Any) -> None:
    """Refuse what the Guard cannot follow, before anything is trained."""
    found, fsdp = "", getattr(accelerator.state, "fsdp_plugin", None)
    match accelerator.distributed_type:
        case DistributedType.DEEPSPEED:
            found = "DeepSpeed"
        case DistributedType.MEGATRON_LM:
            found = "Megatron-LM"
        case DistributedType.XLA:
            found = "XLA"
        case DistributedType.FSDP if getattr(fsdp, "fsdp_version", 1) != 2:
            found = "FSDP1"
    if "lomo" in type(getattr(optimizer, "optimizer", optimizer)).__name__.lower():
        found = "LOMO"
    if found:
        why = CAPABILITIES["refuses"][found]
        raise CapabilityError(f"this Accelerator cannot be guarded: {found}: {why}")
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise ConfigError(
            f"the optimizer is a {type(optimizer).__name__} that was not prepared: model, "
            "optimizer = accelerator.prepare(model, optimizer)"
        )
