"""The same training with and without `watch`, down to the last bit."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.recipes import Recipe, standard
from foreshock.watching import Watch

VOCABULARY, LENGTH = 17, 12


def everything(*, exact_every_steps: int = 5, **signals: Any) -> Recipe:
    """Level full with every option that adds hooks or passes."""
    options: dict[str, Any] = {
        "activations": {"channels": True, "exact": True},
        "attention_logits": {"exact_every_steps": exact_every_steps},
        "grad_extremes": {"exact": True, "count_entries": True},
        "gradients": {"per_parameter": True},
        "output_logits": {"exact": True},
    }
    return standard({"rules": False, "level": "full", "signals": options | signals})


def gpt(**options: Any) -> nn.Module:
    """A GPT of two blocks; wide enough that every kernel takes its usual way."""
    shape = {"vocab": VOCABULARY, "width": 32, "depth": 2, "heads": 2, "context": LENGTH}
    return GPT(GPTConfig(**(shape | options)))


def around_blocks(around: Callable[[nn.Module, Tensor], Tensor], **options: Any) -> Any:
    """Builds a GPT that calls each block, hooks and all, through `around`."""

    def build() -> nn.Module:
        model = gpt(**options)
        call_through(model, around)
        return model

    return build


def call_through(model: Any, around: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Make a GPT call its blocks through `around` from now on."""

    def forward(tokens: Tensor) -> Tensor:
        x = model.embed(tokens)
        for block in model.blocks:
            x = around(block, x)
        return model.head(model.norm(x))

    model.forward = forward


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


@dataclass
class Training:
    """How a model is trained; `train` runs it.

    Attributes:
        build: makes the model; the global generators are seeded.
        wrap: makes of it what is called: itself, compiled, under DDP.
        optimizer: made of its parameters.
        autocast: dtype, or None.
        scale: first loss scale of a `GradScaler`, or None for no scaler.
        micro_steps: in a step, with an evaluation after each but the last.
        clip: through torch's own `clip_grad_norm_`, after `before_clip`.
        steps: optimizer steps.
        bad_steps: those whose loss is infinite.
        bf16: whether the weights are in bf16.
    """

    build: Callable[[], nn.Module] = gpt
    wrap: Callable[[nn.Module], Any] = lambda model: model
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw
    autocast: torch.dtype | None = None
    scale: float | None = None
    micro_steps: int = 1
    clip: float | None = None
    steps: int = 16
    bad_steps: tuple[int, ...] = ()
    bf16: bool = False


@dataclass
class End:
    """Where a training ended, as bits.

    Attributes:
        losses: of every micro-step and evaluation, in order.
        weights: parameters and buffers by path.
        state: everything the optimizer keeps, by place and name.
        generators: states of torch's, NumPy's and Python's generators.
        scale: the loss scale, 0 without.
        readings: every series that was recorded, by step.
        notes: what was not measured as hoped for.
        committed: whether each recorded step's update was made.
    """

    losses: list[Tensor]
    weights: dict[str, Tensor]
    state: dict[str, Any]
    generators: tuple[Any, ...]
    scale: float
    readings: dict[str, dict[int, float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    committed: list[bool] = field(default_factory=list)


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """`[B, T, V]` of a model that returns them, or an output object with them."""
    found = model(tokens)
    return found if isinstance(found, Tensor) else found.logits


def train(
    how: Training,
    recipe: Recipe | None = None,
    *,
    attach_after: int = 0,
    detach_after: int | None = None,
) -> End:
    """Train from the seed, watched from one step to another, or not at all.

    Args:
        how: what is trained, and how.
        recipe: what is watched with; None for nothing.
        attach_after: steps before the watch is attached; 0 is before the model is wrapped.
        detach_after: steps after which it is closed; None is at the end.
    """
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    torch._dynamo.reset()
    model = how.build()
    model = model.to(torch.bfloat16) if how.bf16 else model
    model.train()
    optimizer = how.optimizer(model.parameters())
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=how.scale, growth_interval=9) if how.scale else None
    )
    batches = torch.Generator().manual_seed(1)
    before = traces_of(model)
    watched: Watch | None = None
    end = End([], {}, {}, (), 0.0)

    def attach() -> Watch:
        return Watch(model, optimizer, recipe=recipe, scaler=scaler)

    def close() -> None:
        assert watched is not None
        watched.close()
        read(end, watched)
        after = traces_of(model)
        left = [key for key in before.keys() | after if before.get(key, 0) != after.get(key, 0)]
        # Lightning, wherever it was imported, lets torch.compile leave this on a model.
        left = [key for key in left if not key.endswith(" _compile_kwargs")]
        assert not left, f"watching left traces in {left[:8]}"

    if recipe is not None and attach_after == 0:
        watched = attach()
    called = how.wrap(model)
    for step in range(1, how.steps + 1):
        for micro_step in range(how.micro_steps):
            loss = _loss(how, called, _tokens(batches))
            if step in how.bad_steps:
                loss = loss * torch.inf
            (loss if scaler is None else scaler.scale(loss)).backward()
            end.losses.append(loss.detach())
            if watched is not None:
                watched.loss(loss)
            if micro_step + 1 < how.micro_steps:
                end.losses.append(_evaluation(how, model, called, _tokens(batches)))
        if how.clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            if watched is not None:
                watched.before_clip()
            nn.utils.clip_grad_norm_(model.parameters(), how.clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        if recipe is not None and step == attach_after:
            watched = attach()
        if watched is not None and step == detach_after:
            close()
            watched = None
    if watched is not None:
        close()
    end.weights = {name: one.detach().clone() for name, one in model.state_dict().items()}
    end.state = {
        f"{place}.{name}": value
        for place, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }
    end.generators = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())
    end.scale = scaler.get_scale() if scaler is not None else 0.0
    return end


def read(end: End, watched: Watch) -> None:
    """Keep what a watch has recorded."""
    end.readings = {
        name: {one.step: one.value for one in watched.readings(name)} for name in watched.series
    }
    end.notes = watched.notes
    end.committed = watched.monitor.timeline.committed.tolist()


def _tokens(generator: torch.Generator) -> Tensor:
    """A noisy count upwards, `[B, T + 1]`: learnable, so that gradients stay large."""
    start = torch.randint(VOCABULARY, (4, 1), generator=generator)
    tokens = (start + torch.arange(LENGTH + 1)) % VOCABULARY
    noise = torch.rand(tokens.shape, generator=generator) < 0.1
    return torch.where(noise, torch.randint(VOCABULARY, tokens.shape, generator=generator), tokens)


def _loss(how: Training, called: Any, tokens: Tensor) -> Tensor:
    cast = torch.autocast("cpu", how.autocast) if how.autocast else nullcontext()
    with cast:
        logits = logits_of(called, tokens[:, :-1])
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _evaluation(how: Training, model: nn.Module, called: Any, tokens: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        loss = _loss(how, called, tokens)
    model.train()
    return loss


def traces_of(model: nn.Module) -> dict[str, Any]:
    """Everything in which a model, its classes and torch could show that it is watched."""
    found: dict[str, Any] = {
        f"{name} {key}": dict(value) if isinstance(value, dict) and "hooks" in key else None
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ("_is_torch_compile", "_compiled_call_impl")  # torch.compile's own
    }
    found |= {f"{name} class": type(module) for name, module in model.named_modules()}
    found |= {
        f"{kind.__name__} {key}": id(value)
        for kind in {type(module) for module in model.modules()}
        for key, value in vars(kind).items()
        if callable(value)
    }
    found |= {
        f"{place.__name__} {key}": id(value)
        for place in (torch.nn.functional, torch.nn.modules.module, torch.Tensor)
        for key, value in vars(place).items()
        if callable(value)
    }
    found |= {
        f"global {key}": dict(value)
        for key, value in vars(torch.nn.modules.module).items()
        if key.startswith("_global") and isinstance(value, dict)
    }
    found["modes"] = (
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
    )
    for name, one in model.named_parameters():
        found[f"{name} hooks"] = (
            dict(one._backward_hooks or {}),
            dict(one._post_accumulate_grad_hooks or {}),
            type(one),
        )
    return found


def same_bits(one: Any, other: Any) -> bool:
    """Whether two values are the same bit by bit, NaN included."""
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if not isinstance(one, Tensor):
        return type(one) is type(other) and one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(
        one.detach().contiguous().view(whole), other.detach().contiguous().view(whole)
    )


def differences(plain: End, watched: End) -> list[str]:
    """What is not the same bit by bit; the first loss that differs comes first."""
    found = [
        f"loss {place} of {len(plain.losses)}"
        for place, (one, other) in enumerate(zip(plain.losses, watched.losses, strict=True))
        if not same_bits(one, other)
    ][:1]
    for kind in ("weights", "state"):
        ours, theirs = getattr(plain, kind), getattr(watched, kind)
        assert ours.keys() == theirs.keys()
        assert ours
        found += [f"{kind} {name}" for name in ours if not same_bits(ours[name], theirs[name])]
    for name, one, other in zip(
        ("torch", "numpy", "python"), plain.generators, watched.generators, strict=True
    ):
        if not same_bits(one, other):
            found.append(f"{name}'s generator")
    if plain.scale != watched.scale:
        found.append("loss scale")
    return found


@contextmanager
def one_process_group(folder: Any) -> Iterator[None]:
    """A gloo group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
