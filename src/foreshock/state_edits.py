"""Edits of the state just before a step: moments set to zero, noise on weights."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from foreshock.core.override import MomentReset, WeightNoise
from foreshock.core.signal import Site
from foreshock.ranks.placement import is_distributed

MOMENTS: Final = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "sum",
        "acc_delta",
        "row_var",
        "col_var",
        "variance",
    }
)
"""What the optimizers of torch call first and second moments, and others after them."""

_COUNTS: Final[Mapping[str, float]] = {"step": 0.0, "mu_product": 1.0}
"""What counts updates, and its value before the first; the second is NAdam's."""


def make_edit(site: Site, edit: MomentReset | WeightNoise) -> str:
    """Make an edit of the state and say what was done.

    Neither waits for a device, and only noise on sharded weights takes collectives.
    """
    if isinstance(edit, MomentReset):
        places = places_of(site, edit.groups)
        num = reset_moments(
            site.optimizer,
            [site.parameters[place][1] for place in places],
            restart_count=edit.restart_count,
        )
        which = ", ".join(edit.groups) or "all module groups"
        return f"moments of {num} parameters ({which}) set to zero"
    add_noise([one for _, one in site.parameters], edit.relative_std, edit.seed)
    return f"noise of {edit.relative_std:g} of each tensor's RMS added to the weights"


def places_of(site: Site, groups: Sequence[str]) -> list[int]:
    """Places, among the site's parameters, of those in module groups or below them.

    Args:
        site: whose parameters have groups.
        groups: names as signals have them, or their beginnings up to a dot; empty for all.
    """
    if not groups:
        return list(range(len(site.parameters)))
    return [
        place
        for place, group in enumerate(site.groups)
        if any(group == one or group.startswith(f"{one}.") for one in groups)
    ]


def reset_moments(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    *,
    restart_count: bool = True,
) -> int:
    """Set first and second moments of parameters to zero, in place; return of how many.

    Args:
        optimizer: whose state it is.
        parameters: those of them that it holds no state of yet are left so.
        restart_count: whether their update counts begin anew as well.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> adam = torch.optim.Adam([weight])
    >>> weight.grad = torch.ones(2)
    >>> adam.step()
    >>> reset_moments(adam, [weight]), adam.state[weight]["exp_avg"].tolist()
    (1, [0.0, 0.0])
    """
    num = 0
    for parameter in parameters:
        state: Any = optimizer.state.get(parameter, {})
        held = [
            value
            for key, value in state.items()
            if key in MOMENTS and isinstance(value, torch.Tensor)
        ]
        for value in held:
            value.detach().zero_()
        if restart_count and held:
            _restart(state)
        num += bool(held)
    return num


def add_noise(parameters: Sequence[torch.Tensor], relative_std: float, seed: int) -> None:
    """Add normal noise of `relative_std` times its RMS to each tensor, in place.

    The noise is a function of the seed, the tensor's place and its whole shape, so that every
    rank adds its part of the same noise whatever the sharding. It is drawn on the CPU in fp32.

    Args:
        parameters: complex ones get noise in both parts.
        relative_std: standard deviation over RMS.
        seed: any integer.
    """
    with torch.no_grad():
        for place, parameter in enumerate(parameters):
            generator = torch.Generator().manual_seed(seed_of(f"{seed}/{place}"))
            dtype = torch.complex64 if parameter.is_complex() else torch.float32
            noise = torch.randn(parameter.shape, generator=generator, dtype=dtype)
            rms: Any = parameter.detach().abs().to(torch.float32).square().mean().sqrt()
            if not is_distributed(parameter):
                noise = noise.to(parameter.device) * (rms * relative_std)
                parameter.add_(noise.to(parameter.dtype))
                continue
            _add_sharded(parameter, noise, rms.full_tensor() * relative_std)


def seed_of(text: str) -> int:
    """A seed below 2**53 from a text, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 11


def _add_sharded(parameter: torch.Tensor, noise: torch.Tensor, std: torch.Tensor) -> None:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - seldom needed

    spread: Any = parameter
    scaled = (noise.to(std.device) * std).to(parameter.dtype)
    part = distribute_tensor(scaled, spread.device_mesh, spread.placements, src_data_rank=None)
    parameter.add_(part)


def _restart(state: dict[str, Any]) -> None:
    for key, begin in _COUNTS.items():
        value = state.get(key)
        if isinstance(value, torch.Tensor):
            value.fill_(begin)
        elif value is not None:
            state[key] = type(value)(begin)
