"""Lightning Fabric, in a loop of the user's own.

    model, optimizer = fabric.setup(model, optimizer)
    guard = foreshock.integrations.fabric.guard(
        fabric, model, optimizer, stream, run_dir="runs/a", scheduler=scheduler, clip=1.0
    )
    for batch in guard:
        guard.step(loss_fn(model, batch))

`step` stands for `fabric.backward`, `fabric.clip_gradients`, the optimizer's and the schedule's
step and `zero_grad`. Batches are on Fabric's device. With `accumulate=n` a step has n batches;
the mean of their losses is differentiated, and ranks join gradients at the last one only. The
Stream is not set up by Fabric, and gives each process its own share.

What differs from the same loop without the Guard: the schedule advances over a skipped step;
a step that the data's end cuts short is not made.
"""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric, is_wrapped

from foreshock.core.errors import CapabilityError, ConfigError
from foreshock.guard import Guard
from foreshock.own_loop import OwnLoop

CAPABILITIES = {
    "title": "a loop with Lightning Fabric",
    "packages": ["lightning"],
    "extra": "lightning",
    "yes": "watch samples skip rollback quarantine resume stop clip lr accumulate fp16 processes",
    "limited": {"own_loader": "steps are skipped; none is taken back, and nothing is resumed"},
    "no": {
        "shards": "strategies other than one device and DDP were never tried",
    },
    "refuses": {
        "DeepSpeedStrategy": "it makes the update inside the engine, where the Guard cannot come "
        "between",
        "FSDPStrategy": "it is FSDP1, which flattens parameters; use DDPStrategy",
        "other strategies": "they were never tried; use one device, or DDPStrategy",
    },
}


def guard(
    fabric: Fabric,
    model: Any,
    optimizer: Any,
    stream: Any,
    *,
    run_dir: str | Path,
    scheduler: Any = None,
    accumulate: int = 1,
    resume: bool | None = None,
    **options: Any,
) -> OwnLoop:
    """Guard a loop that trains with Fabric.

    Args:
        fabric: whose backward pass, precision and devices are used.
        model: as `fabric.setup` returned it.
        optimizer: as `fabric.setup` returned it.
        stream: a Stream with `rank=fabric.global_rank` and `world_size=fabric.world_size`; or
            another source of batches, see `Guard`.
        run_dir: where the run is recorded.
        scheduler: stepped once a step.
        accumulate: micro-steps in a step.
        resume: see `Guard`; by default a run that is there is continued.
        options: further arguments of `Guard`.

    Raises:
        CapabilityError: the Guard cannot follow what this Fabric does.
        ConfigError: model or optimizer were not set up, or an argument is not allowed.
    """
    _check(fabric, model, optimizer)
    wrapped = model._forward_module
    raw: Any = optimizer.optimizer
    inner = Guard(
        getattr(wrapped, "_orig_mod", wrapped),  # without torch.compile's wrapper
        raw,
        stream,
        run_dir=run_dir,
        scheduler=scheduler,
        scaler=getattr(fabric.strategy.precision, "scaler", None),
        accumulate=accumulate,
        driven=True,
        resume=resume,
        **options,
    )

    def backward(loss: torch.Tensor) -> torch.Tensor:
        share = loss / accumulate
        fabric.backward(share, model=model)
        return share.detach()

    def schedule(last: bool) -> None:
        if not last:
            return
        fabric.call("on_after_optimizer_step", strategy=fabric.strategy, optimizer=raw)
        if scheduler is not None:
            raw._opt_called = True  # if the first update was skipped: torch would warn
            scheduler.step()

    return OwnLoop(
        inner,
        accumulate=accumulate,
        place=fabric.to_device,
        around=lambda last: fabric.no_backward_sync(model, enabled=not last),
        backward=backward,
        schedule=schedule,
    )


def _check(fabric: Any, model: Any, optimizer: Any) -> None:
    """Refuse what the Guard cannot follow, before anything is trained."""
    kinds = {kind.__name__ for kind in type(fabric.strategy).__mro__}
    known = CAPABILITIES["refuses"]
    found = next((name for name in known if name in kinds), "")
    if not kinds & {"SingleDeviceStrategy", "DDPStrategy"} or "XLA" in str(kinds):
        found = found or "other strategies"
    if found:
        name = type(fabric.strategy).__name__
        raise CapabilityError(f"this Fabric cannot be guarded: {name}: {known[found]}")
    for name, one in {"model": model, "optimizer": optimizer}.items():
        if not is_wrapped(one):
            raise ConfigError(
                f"the {name} is a {type(one).__name__} that was not set up: model, optimizer = "
                "fabric.setup(model, optimizer)"
            )
