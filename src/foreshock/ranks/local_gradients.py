"""Gradients as one rank computes them, before any reduction over ranks."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foreshock.core.errors import ProgramError
from foreshock.ranks.placement import is_distributed

LossFn = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalGradients:
    """What one rank computed for one micro-batch.

    Attributes:
        loss: `[]`, detached.
        gradients: by path; None where the parameter had no part in the loss. DTensors only
            under tensor parallelism, laid out like their parameter. Empty where this kind of
            model gives none before the reduction.
        order: paths in the order in which the backward reached them.
    """

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    order: tuple[str, ...]


def local_gradients(
    model: nn.Module, loss_fn: LossFn, batch: Any, *, scale: float = 1.0, again: Any = None
) -> LocalGradients:
    """Run forward and backward once, and keep every reduction from starting.

    Plain modules and DDP (its inner module) by `torch.autograd.grad`, which touches no
    gradient and fires no post-accumulation hook; with reentrant checkpointing, which does not
    allow that, by `backward`. FSDP2 by `backward` without gradient synchronisation, from the
    gradients of the unsharded parameters. FSDP1 gives its loss only.

    Call it inside `leave_no_trace`.

    Args:
        model: as it is trained, wrappers included.
        loss_fn: `(model, batch) -> loss []`; autocast, if any, is its own affair.
        batch: what it takes.
        scale: what the loss is multiplied by before the backward (a fixed loss scale for fp16).
        again: called before a second attempt with `backward` (to seed anew).

    Raises:
        ProgramError: the loss is no scalar that requires gradients, or the optimizer runs
            inside the backward, which cannot be held back.
    """
    inner = _inner(model)
    if _has(inner, "torch.distributed.fsdp", "FullyShardedDataParallel"):
        with torch.no_grad():
            return LocalGradients(loss=_loss(loss_fn, inner, batch), gradients={}, order=())
    with torch.enable_grad(), _held_back(inner):
        if _has(inner, "torch.distributed.fsdp", "FSDPModule"):
            return _sharded(inner, loss_fn, batch, scale)
        try:
            return _plain(inner, loss_fn, batch, scale)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
        if again is not None:
            again()
        return _accumulated(inner, loss_fn, batch, scale, _trainable(inner))


def placed(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """(path, tensor) as `local_gradients` lays gradients out: FSDP2's parameters unsharded.

    Call it after a forward, since FSDP2 makes the unsharded ones only then.
    """
    inner = _inner(model)
    if _has(inner, "torch.distributed.fsdp", "FSDPModule"):
        return [(name, leaf) for name, leaf, _ in _leaves(inner)]
    return _trainable(inner)


def _plain(inner: nn.Module, loss_fn: LossFn, batch: Any, scale: float) -> LocalGradients:
    named = _trainable(inner)
    loss = _loss(loss_fn, inner, batch)
    with _recorded(named) as order:
        found = torch.autograd.grad(
            loss * scale, [parameter for _, parameter in named], allow_unused=True
        )
    pairs = zip(named, found, strict=True)
    gradients = {name: _like(parameter, gradient) for (name, parameter), gradient in pairs}
    return LocalGradients(loss=loss.detach(), gradients=gradients, order=tuple(order))


def _accumulated(
    inner: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    scale: float,
    named: list[tuple[str, torch.Tensor]],
) -> LocalGradients:
    _refuse_optimizer_in_backward(named)
    loss = _loss(loss_fn, inner, batch)
    with _recorded(named) as order:
        (loss * scale).backward()
    gradients = {name: _like(parameter, parameter.grad) for name, parameter in named}
    return LocalGradients(loss=loss.detach(), gradients=gradients, order=tuple(order))


def _sharded(inner: nn.Module, loss_fn: LossFn, batch: Any, scale: float) -> LocalGradients:
    managed = {id(one) for one in _fsdp_tensors(inner)}
    plain = [(name, one) for name, one in _trainable(inner) if id(one) not in managed]
    _refuse_optimizer_in_backward(plain)
    with _set_aside(inner):
        loss = _loss(loss_fn, inner, batch)
        leaves = _leaves(inner)
        with _recorded([(name, leaf) for name, leaf, _ in leaves]) as order:
            (loss * scale).backward()
        gradients: dict[str, torch.Tensor | None] = {}
        for name, leaf, fsdp in leaves:
            gradient = leaf.grad
            if fsdp is not None and fsdp.unsharded_accumulated_grad is not None:
                gradient = fsdp.unsharded_accumulated_grad
            gradients[name] = _like(leaf, gradient)
        return LocalGradients(loss=loss.detach(), gradients=gradients, order=tuple(order))


@contextmanager
def _set_aside(inner: nn.Module) -> Iterator[None]:
    """Set aside what FSDP2 has accumulated, keep it from reducing, and put all back."""
    groups = _fsdp_groups(inner)
    switches = [(group, group.reduce_grads, group.all_reduce_grads) for group in groups]
    kept = [
        (one, one.unsharded_accumulated_grad, _unsharded(one), _grad(_unsharded(one)))
        for group in groups
        for one in group.fsdp_params
    ]
    contexts = [
        (state._state_ctx, state._state_ctx.is_last_backward) for state in _fsdp_states(inner)
    ]
    for context, _ in contexts:
        context.is_last_backward = True  # so that no order of prefetching is left behind
    for group in groups:
        group.reduce_grads = group.all_reduce_grads = False
    for one, _, leaf, _ in kept:
        one.unsharded_accumulated_grad = None
        if leaf is not None:
            leaf.grad = None
    try:
        yield
    finally:
        for context, is_last in contexts:
            context.is_last_backward = is_last
        for group, reduce, all_reduce in switches:
            group.reduce_grads, group.all_reduce_grads = reduce, all_reduce
        for one, accumulated, _, gradient in kept:
            one.unsharded_accumulated_grad = accumulated
            leaf = _unsharded(one)
            if leaf is not None:
                leaf.grad = gradient


def _leaves(inner: nn.Module) -> list[tuple[str, torch.Tensor, Any]]:
    """(path, leaf of the graph, FSDP2's record or None) of each trainable parameter."""
    records = {
        id(tensor): one
        for group in _fsdp_groups(inner)
        for one in group.fsdp_params
        for tensor in (one.sharded_param, _unsharded(one))
        if tensor is not None
    }
    found: list[tuple[str, torch.Tensor, Any]] = []
    for name, parameter in _trainable(inner):
        record = records.get(id(parameter))
        leaf = None if record is None else _unsharded(record)
        found.append((name, parameter if leaf is None else leaf, record))
    return found


def _fsdp_states(inner: nn.Module) -> list[Any]:
    fsdp: Any = sys.modules["torch.distributed.fsdp"].FSDPModule
    modules: list[Any] = [one for one in inner.modules() if isinstance(one, fsdp)]
    states = [module._get_fsdp_state() for module in modules]
    return list({id(state): state for state in states}.values())


def _fsdp_groups(inner: nn.Module) -> list[Any]:
    groups = [group for state in _fsdp_states(inner) for group in state._fsdp_param_groups]
    return list({id(group): group for group in groups}.values())


def _fsdp_tensors(inner: nn.Module) -> list[torch.Tensor]:
    return [
        tensor
        for group in _fsdp_groups(inner)
        for one in group.fsdp_params
        for tensor in (one.sharded_param, _unsharded(one))
        if tensor is not None
    ]


def _unsharded(record: Any) -> torch.Tensor | None:
    return vars(record).get("_unsharded_param")  # made at the first forward


def _grad(leaf: torch.Tensor | None) -> torch.Tensor | None:
    return None if leaf is None else leaf.grad


@contextmanager
def _held_back(inner: nn.Module) -> Iterator[None]:
    """Keep DDP modules inside the model from reducing, and from forgetting their buffers."""
    with ExitStack() as stack:
        for module in inner.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                stack.callback(
                    setattr,
                    module,
                    "require_forward_param_sync",
                    module.require_forward_param_sync,
                )
                stack.enter_context(module.no_sync())
        yield


@contextmanager
def _recorded(named: Sequence[tuple[str, torch.Tensor]]) -> Iterator[list[str]]:
    """Record the order in which the backward reaches the leaves."""
    order: list[str] = []

    def note(name: str) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if name not in seen:
                seen.add(name)
                order.append(name)

        return hook

    seen: set[str] = set()
    handles = [leaf.register_hook(note(name)) for name, leaf in named]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


def _inner(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _trainable(inner: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, one) for name, one in inner.named_parameters() if one.requires_grad]


def _has(inner: nn.Module, package: str, name: str) -> bool:
    module = sys.modules.get(package)  # where it was not imported, nothing is of its kind
    kind = None if module is None else vars(module).get(name)
    return kind is not None and any(isinstance(one, kind) for one in inner.modules())


def _loss(loss_fn: LossFn, inner: nn.Module, batch: Any) -> torch.Tensor:
    loss = loss_fn(inner, batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ProgramError(
            f"the canary's loss function gave {type(loss).__name__}"
            f"{list(loss.shape) if isinstance(loss, torch.Tensor) else ''}; it must give one number"
        )
    return loss.reshape(())


def _like(parameter: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Dense, detached, and laid out like its parameter."""
    if gradient is None:
        return None
    dense = gradient.detach()
    dense = dense.to_dense() if dense.layout == torch.sparse_coo else dense
    if is_distributed(dense) and is_distributed(parameter):
        spread: Any = parameter
        if getattr(dense, "placements", None) != spread.placements:
            dense = dense.redistribute(placements=spread.placements)  # pyright: ignore[reportAttributeAccessIssue]
    return dense


def _refuse_optimizer_in_backward(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    for name, parameter in named:
        if parameter._post_accumulate_grad_hooks:
            raise ProgramError(
                f"{name} has a hook that runs after its gradient is accumulated (an optimizer in "
                "the backward, say), and this model needs a backward that would fire it; the "
                "canary cannot run here"
            )
