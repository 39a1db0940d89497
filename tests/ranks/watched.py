"""A small GPT trained on several ranks, watched or not; the same global batch on any number."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.recipes import Recipe, standard
from foreshock.watching import Watch

STEPS, SAMPLES, LENGTH = 8, 8, 16
VOCABULARY = 97  # uneven over two ranks and over four
DIGEST_STEPS, SEALED_STEPS = (4, 8), (3, 6)  # sealed at the end of these
_HYBRID = ("replicate", "shard")
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional")


class Model(nn.Module):
    """A GPT with a parameter of fewer rows than there are ranks, and one of a single element."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        shape = GPTConfig(vocab=VOCABULARY, width=64, depth=2, heads=4, context=LENGTH)
        self.gpt = GPT(shape, torch.Generator().manual_seed(0))
        self.gain = nn.Parameter(torch.ones(1))
        self.table = nn.Parameter(torch.linspace(-1, 1, 3 * 2048).reshape(3, 2048))
        if frozen:
            self.gpt.blocks[0].attn.qkv.weight.requires_grad_(False)  # pyright: ignore

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.gpt(tokens) * (self.gain + self.table.square().mean())


def batches() -> torch.Tensor:
    """`[STEPS, SAMPLES, LENGTH + 1]` tokens; some never come, so that rows have no gradient."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY - 7, (STEPS, SAMPLES, LENGTH + 1), generator=generator)


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def made(layout: str, world: int, *, frozen: bool = False) -> tuple[Any, nn.Module]:
    """The model laid out over the ranks, and the plain module inside it."""
    model = Model(frozen)
    if layout.startswith("ddp"):
        options = {
            "ddp": {},
            "ddp_view": {"gradient_as_bucket_view": True},
            "ddp_static": {"static_graph": True},
        }[layout]
        return nn.parallel.DistributedDataParallel(model, **options), model
    if layout == "tp":
        mesh = init_device_mesh("cpu", (world,))
        for block in model.gpt.blocks:
            plan = {"ffn.up": ColwiseParallel(), "ffn.down": RowwiseParallel()}
            parallelize_module(block, mesh, plan)
        return model, model
    if layout == "sp":
        _over_sequence(model.gpt, init_device_mesh("cpu", (world,)))
        return model, model
    if layout in ("fsdp", "hsdp"):
        shape, names = ((world,), ("shard",)) if layout == "fsdp" else ((2, world // 2), _HYBRID)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for block in model.gpt.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh)
    return model, model


def _over_sequence(gpt: GPT, mesh: DeviceMesh) -> None:
    """Sequence parallelism: each rank has a part of the tokens, and norms are replicated."""
    parts, everything = Shard(1), Replicate()
    gathered = PrepareModuleInput(
        input_layouts=parts, desired_input_layouts=everything, use_local_output=True
    )
    split = PrepareModuleOutput(output_layouts=everything, desired_output_layouts=parts)
    for block in gpt.blocks:
        plan = {
            "attn_norm": SequenceParallel(),
            "attn": PrepareModuleInputOutput(
                input_layouts=parts,
                desired_input_layouts=everything,
                use_local_input=True,
                output_layouts=everything,
                desired_output_layouts=parts,
            ),
            "ffn_norm": SequenceParallel(),
            "ffn.up": ColwiseParallel(input_layouts=parts),
            "ffn.down": RowwiseParallel(output_layouts=parts),
        }
        parallelize_module(block, mesh, plan)
    parallelize_module(gpt, mesh, {"embed": split, "norm": SequenceParallel(), "head": gathered})


def recipe(**settings: dict[str, Any]) -> Recipe:
    """Level full; what is measured now and then, often enough for a short training."""
    signals = {
        "param_norm": {"interval_steps": 2},
        "replicas": {"interval_steps": 4},
        "sealed_shards": {"every_steps": 3},
        "gradients": {"per_parameter": True},
        "grad_extremes": {"count_entries": True},
        "optimizer_state": {"interval_steps": 2},
        "state_digest": {"interval_steps": 4},
    }
    return standard({"rules": False, "level": "full", "signals": signals | settings})


class Training(NamedTuple):
    """What came of it on one rank; `values[series]` by step, `norms` as clipping returned them."""

    values: dict[str, dict[int, float]]
    weights: dict[str, torch.Tensor]
    alarms: list[str]
    findings: list[str]
    collectives: list[int]
    hooks: list[str]
    norms: list[float]
    losses: list[float]
    committed: list[bool]


Meddle = Callable[[int, nn.Module], None]
Spoil = Callable[[int, torch.Tensor], torch.Tensor]


def train(
    layout: str,
    rank: int,
    world: int,
    *,
    observed: bool = True,
    micro_steps: int = 1,
    frozen: bool = False,
    clip: float | None = None,
    canary: int = 0,
    lr: float = 1e-3,
    scaler: Any = None,
    fused: bool = False,
    meddle: Meddle = lambda step, model: None,
    spoil: Spoil = lambda step, loss: loss,
    **options: Any,
) -> Training:
    """Train; `meddle` runs between two steps, before the forward of the second.

    Clips by `watched.clip_` if observed, else by torch's function.
    """
    model, inner = made(layout, world, frozen=frozen)
    trained = [one for one in inner.parameters() if one.requires_grad]
    kind = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.AdamW(trained, lr=lr, eps=1e-5, **kind)
    watched = None
    if observed:
        watched = Watch(model, optimizer, scaler=scaler, **({"recipe": recipe()} | options))
        if canary:
            watched.canary(loss_of, batches()[0, :2], every_steps=canary)
    collectives: list[int] = []
    norms: list[float] = []
    losses: list[float] = []
    parts = 1 if layout in ("tp", "sp") else world
    for step, batch in enumerate(batches(), start=1):
        meddle(step, inner)
        own = batch.chunk(parts)[rank % parts]
        with counted() as counter:
            for place, micro in enumerate(own.chunk(micro_steps), start=1):
                last = place == micro_steps
                held = nullcontext() if last or not layout.startswith("ddp") else model.no_sync()
                with held:
                    loss = spoil(step, loss_of(model, micro))
                    share = loss / micro_steps
                    (share if scaler is None else scaler.scale(share)).backward()
                losses.append(float(loss.detach()))
                if watched is not None:
                    watched.loss(loss)
            if clip is not None and watched is not None:
                norms.append(float(watched.clip_(clip)))
            elif clip is not None:
                norms.append(float(whole(nn.utils.clip_grad_norm_(trained, clip))))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        collectives.append(counter.count)
        optimizer.zero_grad()
    values: dict[str, dict[int, float]] = {}
    alarms: list[str] = []
    findings: list[str] = []
    committed: list[bool] = []
    if watched is not None:
        watched.close()
        values = {
            name: {one.step: one.value for one in watched.readings(name)} for name in watched.series
        }
        alarms, findings = [str(alarm) for alarm in watched.alarms], watched.findings
        committed = watched.monitor.timeline.committed.tolist()
    weights = {name: whole(one) for name, one in inner.named_parameters()}
    hooks = hooks_of(inner, optimizer)
    return Training(values, weights, alarms, findings, collectives, hooks, norms, losses, committed)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """All that hangs on modules and optimizer, and where their forwards come from."""
    found = [
        f"{path}.{name}: {hook!r:.60}"
        for path, module in [*model.named_modules(), ("optimizer", optimizer)]
        for name, table in vars(module).items()
        if name.endswith("_hooks") and table
        for hook in table.values()
    ]
    names = [f"{path}: {module.forward.__qualname__}" for path, module in model.named_modules()]
    return [name.partition(" at 0x")[0] for name in found] + names


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COLLECTIVES and "wait_tensor" not in func.__name__:
            self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[_Counter]:
    """Count the collectives that are started inside."""
    with _Counter() as counter:
        yield counter


def differences(found: Training, reference: Training) -> dict[str, float]:
    """Largest relative difference of each series from the reference's; Inf where steps differ."""
    largest: dict[str, float] = {}
    for name, values in reference.values.items():
        mine = found.values.get(name, {})
        if mine.keys() != values.keys():
            largest[name] = float("inf")
            continue
        scale = max((abs(value) for value in values.values()), default=0.0)
        floor = max(1e-3 * scale, 1e-12)
        largest[name] = max(
            (abs(mine[at] - one) / max(abs(one), floor) for at, one in values.items()),
            default=0.0,
        )
    return largest
