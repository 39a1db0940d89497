"""Where signals are attached: a model's parts, its parameters' groups, and who shares them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foreshock.anatomy import anatomy_of
from foreshock.core.errors import ConfigError
from foreshock.core.meter import Meter
from foreshock.core.names import module_group
from foreshock.core.scopes import ROLES
from foreshock.core.signal import Reduction, Site
from foreshock.ranks.collective import Kind, reduce_partials
from foreshock.ranks.exchange import exchange, num_ranks
from foreshock.ranks.placement import is_distributed, num_copies


def site_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[tuple[str, torch.nn.Parameter]],
    *,
    scaler: Any = None,
    clip: float | None = None,
    terms: Sequence[str] = (),
    per_sample: bool = False,
    parts: Mapping[str, str | Sequence[str]] | None = None,
    meter: Meter | None = None,
) -> Site:
    """Describe a model to its signals.

    Args:
        model: the module that is trained, wrapped or not.
        optimizer: its optimizer.
        parameters: (path, parameter) that the optimizer trains.
        scaler: the gradient scaler, or None.
        clip: largest gradient norm, or None.
        terms: names of the loss terms.
        per_sample: whether the loss of each sample is reported.
        parts: patterns for parts that are not found by structure; see `anatomy_of`.
        meter: adds up what signals cost; None for nobody who asks.

    Raises:
        ConfigError: a pattern of `parts` matches nothing.
    """
    anatomy = anatomy_of(model, parts or {})
    world = num_ranks(None)
    sharded = tuple(is_distributed(parameter) for _, parameter in parameters)
    return Site(
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        clip=clip,
        parameters=tuple((anatomy.plain(path), parameter) for path, parameter in parameters),
        terms=tuple(terms),
        per_sample=per_sample,
        groups=tuple(
            anatomy.group_of(path) or module_group(anatomy.plain(path)) for path, _ in parameters
        ),
        sharded=sharded if any(sharded) else (),
        share_of_copies=tuple(num_copies(parameter, world) ** -0.5 for _, parameter in parameters)
        if any(sharded)
        else (),
        anatomy=anatomy,
        meter=meter,
    )


def facts_of(site: Site, given: Mapping[str, Any]) -> dict[str, Any]:
    """What causes may know of a model besides readings: the same on every rank.

    Args:
        site: where signals are attached.
        given: what the program says of itself (precision, …); it wins.
    """
    anatomy, weights = site.anatomy, dict(site.parameters)
    ends = [path for path in (anatomy.head, *anatomy.embeddings[:1]) if path]
    sizes = [weights.get(f"{anatomy.plain(path)}.weight") for path in ends]
    vocabulary = next((one.shape[0] for one in sizes if one is not None and one.dim() == 2), None)
    groups = site.groups or tuple(module_group(path) for path, _ in site.parameters)
    told = {
        "has_scaler": site.scaler is not None,
        "num_parameters": sum(parameter.numel() for _, parameter in site.parameters),
        ROLES: {
            group: anatomy.role_of(path)
            for (path, _), group in zip(site.parameters, groups, strict=True)
        },
    }
    return told | ({} if vocabulary is None else {"vocab_size": int(vocabulary)}) | dict(given)


def agree(
    what: str, named: Sequence[str], device: torch.device, failure: Exception | None = None
) -> None:
    """Begin on all ranks or on none: raise on every rank if one failed or differs; collective.

    Args:
        what: what is to be the same, in a word.
        named: this rank's.
        device: where the ranks' backend wants its tensors.
        failure: why this rank cannot begin, which is raised here; None if it can.

    Raises:
        ConfigError: another rank failed, or the ranks differ.
    """
    own = [len(named), hashlib.blake2b("\n".join(named).encode(), digest_size=8).hexdigest()]
    said = None if failure is None else f"{type(failure).__name__}: {failure}"[:500]
    told = exchange([own, said], device, None)
    if failure is not None:
        raise failure
    failed = {rank: reason for rank, (_, reason) in enumerate(told) if reason is not None}
    if failed:
        raise ConfigError(f"watching could not begin on other ranks: {failed}")
    others = [rank for rank, (theirs, _) in enumerate(told) if theirs != told[0][0]]
    if others:
        first, second = told[0][0][0], told[others[0]][0][0]
        raise ConfigError(
            f"ranks differ in their {what} (rank 0 has {first}, rank {others[0]} {second}; "
            f"{len(others)} of {len(told)} are not like rank 0); watch the same model with the "
            "same options on every rank"
        )


def join(packed: torch.Tensor, kinds: Sequence[Reduction]) -> torch.Tensor:
    """Join the partials `[K]` of all ranks in one collective; each EACH becomes one a rank.

    Every rank must call it in the same step, with the same kinds. A finite value that fp32
    cannot hold becomes its largest number: Inf is what was broken somewhere.
    """
    names = [Kind.PER_RANK if kind is Reduction.EACH else Kind(kind) for kind in kinds]
    reduced = reduce_partials(packed, names)
    each = [column for column, kind in enumerate(kinds) if kind is Reduction.EACH]
    if not each:
        return _narrow(reduced.values)
    places = {column: reduced.columns.index(column) for column in each}
    parts: list[torch.Tensor] = []
    begin = 0
    for column in each:
        parts += [reduced.values[begin:column], reduced.table[:, places[column]]]
        begin = column + 1
    return _narrow(torch.cat([*parts, reduced.values[begin:]]))


def _narrow(values: torch.Tensor) -> torch.Tensor:
    most = torch.finfo(torch.float32).max
    held = torch.where(torch.isfinite(values), values.clamp(-most, most), values)
    return held.to(torch.float32)
