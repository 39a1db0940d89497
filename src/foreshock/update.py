"""The gate and the update: decided on the device, exact whether made or skipped."""

from collections.abc import Callable
from itertools import compress
from typing import Any

import torch
import torch.distributed

from foreshock.anatomy import Anatomy, anatomy_of
from foreshock.core.action import Capability
from foreshock.core.errors import ConfigError
from foreshock.core.override import AS_BUILT, Tuning
from foreshock.norms import Sizes, local, sizes
from foreshock.optimizer_settings import capabilities_of, overridden
from foreshock.ranks.exchange import num_ranks
from foreshock.ranks.placement import is_distributed, laid_out_like, num_copies
from foreshock.several import members_of


class Update:
    """One optimizer step behind the gate.

    The rule: commit if and only if the gradient norm is finite and at most the gate
    limit. A skipped step leaves weights, moments and update counts bit-identical: it is
    selected, never multiplied by zero. Fused optimizers take the verdict as a tensor
    (`found_inf`) and the clip as a divisor (`grad_scale`), so that nothing waits for the
    device; with others, and in a first step, there is one wait, and a skipped optimizer is
    simply not called.

    Args:
        optimizer: any `torch.optim` optimizer that needs no closure.
        parameters: (path, parameter), each once.
        scaler: a `torch.amp.GradScaler`, or None.
        clip: largest gradient norm, or None.
        model: where embeddings are looked for; None if their gradients are never shrunk.
        gated: False commits every update, as a loop by hand does, unless a scaler skips it.
        agree: makes the norm of all gradients `[]` the same on every rank; None for one.

    Raises:
        ConfigError: the optimizer needs a closure, or the clip is not above 0.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[tuple[str, torch.nn.Parameter]],
        *,
        scaler: Any = None,
        clip: float | None = None,
        model: torch.nn.Module | None = None,
        gated: bool = True,
        agree: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        if any(isinstance(one, torch.optim.LBFGS) for one in members_of(optimizer)):
            raise ConfigError(
                "LBFGS calls the model several times a step; Foreshock cannot gate it"
            )
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip is {clip}; it must be above 0, or None for no clipping")
        self._optimizer = optimizer
        self._parameters = [parameter for _, parameter in parameters]
        self._device = self._parameters[0].device
        anatomy = anatomy_of(model) if model is not None else Anatomy()
        embeddings = [anatomy.role_of(path) == "embedding" for path, _ in parameters]
        self._embeddings = list(compress(self._parameters, embeddings))
        self._is_embedding = torch.tensor(embeddings, device=self._device)
        self._over_ranks = _OverRanks.of(self._parameters)
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._clip = clip
        self._agree = agree
        self._gated = gated or self._scaler is not None
        self._fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and all(
            group.get("fused") for group in optimizer.param_groups
        )
        self._limit = torch.full((), torch.inf, dtype=torch.float32, device=self._device)
        self._limit_value = float("inf")

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this optimizer allows."""
        return capabilities_of(
            self._optimizer, fused=self._fused, has_embeddings=bool(self._embeddings)
        )

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, scaled if there is a scaler."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def gradient_sizes(self) -> tuple[Sizes, torch.Tensor]:
        """Unscale, and return how large each gradient is `[P]` and the norm of them all `[]`.

        The first is of this rank's part where parameters are sharded; the second over all
        ranks, for which there is then a collective of one number. It is in fp32, in which the
        clip is computed, so that a norm beyond its range is Inf and the step is skipped. A
        parameter without a gradient counts as zeros.
        """
        found = self.local_sizes()
        return found, self.total_norm(found.norms)

    def local_sizes(self) -> Sizes:
        """The first of `gradient_sizes` alone, `[P]`."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        present = [(p.grad, p) for p in self._parameters if p.grad is not None]
        grads = [grad for grad, _ in present]
        if self._over_ranks is not None:
            grads = [laid_out_like(grad, parameter) for grad, parameter in present]
        found = sizes(grads, self._device)
        if len(grads) == len(self._parameters) and not any(grad.is_sparse for grad in grads):
            return found
        there = [place for place, one in enumerate(self._parameters) if one.grad is not None]
        return self._of_all(
            found, torch.tensor(there, dtype=torch.int64, device=self._device), grads
        )

    def _of_all(self, found: Sizes, there: torch.Tensor, grads: list[torch.Tensor]) -> Sizes:
        """Sizes of all gradients from those that are there; what is not stored is zero."""
        nothing = torch.zeros(len(self._parameters), dtype=torch.float64, device=self._device)
        norms = nothing.index_copy(0, there, found.norms)
        if found.largest is None or found.num_zeros is None:
            return Sizes(norms)
        numbers = torch.tensor([local(one).numel() for one in self._parameters]).to(nothing)
        stored = torch.tensor([local(grad).numel() for grad in grads]).to(nothing)
        numbers.index_add_(0, there, found.num_zeros - stored)
        return Sizes(norms, nothing.index_copy(0, there, found.largest), numbers)

    def total_norm(self, norms: torch.Tensor) -> torch.Tensor:
        """The second of `gradient_sizes`, `[]`, from the norms of the first."""
        if self._over_ranks is not None:
            total = self._over_ranks.total(norms).to(torch.float32)
        else:
            total = torch.linalg.vector_norm(norms).to(torch.float32)
        return total if self._agree is None else self._agree(total)

    def shrink_embeddings(
        self, grad_norm: torch.Tensor, norms: torch.Tensor, tuning: Tuning
    ) -> torch.Tensor:
        """Shrink the gradients of embeddings if the step asks for it; return the norm then `[]`.

        Nothing is read again for it, and no device waited for. Where parameters are sharded,
        there is a collective of one number.

        Args:
            grad_norm: `[]` of the gradients as they came.
            norms: `[P]` likewise, of each.
            tuning: of this step.
        """
        factor = tuning.embedding_factor
        if factor == 1:
            return grad_norm
        self._multiply(self._embeddings, factor)
        return self.total_norm(torch.where(self._is_embedding, norms * factor, norms))

    def max_norm(self, tuning: Tuning = AS_BUILT) -> float | None:
        """Largest gradient norm of a step, or None."""
        return tuning.max_norm(self._clip)

    def clip_factor(
        self, grad_norm: torch.Tensor, tuning: Tuning = AS_BUILT
    ) -> "torch.Tensor | float":
        """What clipping multiplies gradients by, `[]`, from the norm before it; 1 without."""
        clip = self.max_norm(tuning)
        return 1.0 if clip is None else clip_factor(clip, grad_norm)

    def commit_or_skip(
        self,
        grad_norm: torch.Tensor,
        gate_limit: float,
        lr_factor: float,
        tuning: Tuning = AS_BUILT,
        used_norm: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Make the update if the gate commits; return the verdict as a bool tensor `[]`.

        Args:
            grad_norm: `[]`, of the gradients as they came.
            gate_limit: largest norm that is committed; may be infinite.
            lr_factor: multiplies the learning rate of this step only.
            tuning: what else is changed in this step only.
            used_norm: `[]` before clipping, where `shrink_embeddings` has made it another.
        """
        clip = self.max_norm(tuning)
        clipped_norm = grad_norm if used_norm is None else used_norm
        if gate_limit != self._limit_value:
            self._limit.fill_(gate_limit)
            self._limit_value = gate_limit
        commit = torch.isfinite(grad_norm) & (grad_norm <= self._limit)
        if not self._gated:
            commit = torch.ones_like(commit)
        with overridden(self._optimizer, lr_factor, tuning):
            if self._fused and not self._makes_state():
                self._step_fused(clipped_norm, commit, clip)
            elif bool(commit):
                if clip is not None:
                    self.multiply_gradients(clip_factor(clip, clipped_norm))
                self._optimizer.step()
        if self._scaler is not None:
            self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return commit

    def drop_gradients(self) -> None:
        """Forget what has been gathered of a step that will not be completed."""
        self._optimizer.zero_grad(set_to_none=True)

    def lr(self, factor: float, tuning: Tuning = AS_BUILT) -> float:
        """The learning rate of the first group, with what is overridden."""
        return tuning.lr(float(self._optimizer.param_groups[0]["lr"]) * factor)

    def _makes_state(self) -> bool:
        """Whether the update would make the state of a parameter: its first one.

        A fused optimizer makes it before it looks at the verdict, and a skipped first step
        would leave it behind, uninitialised with SGD's momentum. So that step waits.
        """
        return any(
            parameter.grad is not None
            and group.get("momentum") != 0
            and all(value is None for value in self._optimizer.state.get(parameter, {}).values())
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        )

    def _step_fused(
        self, grad_norm: torch.Tensor, commit: torch.Tensor, clip: float | None
    ) -> None:
        optimizer: Any = self._optimizer
        if clip is not None:
            optimizer.grad_scale = ((grad_norm + 1e-6) / clip).clamp(min=1.0)
        optimizer.found_inf = (~commit).to(torch.float32)
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf
            if clip is not None:
                del optimizer.grad_scale

    def multiply_gradients(self, factor: torch.Tensor) -> None:
        """Multiply every gradient by a number `[]` in place."""
        self._multiply(self._parameters, factor)

    def _multiply(self, parameters: list[torch.nn.Parameter], factor: torch.Tensor | float) -> None:
        grads: list[torch.Tensor] = []
        for parameter in parameters:
            if parameter.grad is not None:
                if parameter.grad.is_sparse:  # else its coalesced copy would be multiplied
                    parameter.grad = parameter.grad.coalesce()
                grads.append(local(parameter.grad))
        for device in {grad.device for grad in grads}:
            same = [grad for grad in grads if grad.device == device]
            one = factor.to(device) if isinstance(factor, torch.Tensor) else factor
            torch._foreach_mul_(same, one)


def clip_factor(max_norm: float, grad_norm: torch.Tensor) -> torch.Tensor:
    """What gradients of this norm are multiplied by, `[]`, as `clip_grad_norm_` does."""
    return (max_norm / (grad_norm + 1e-6)).clamp(max=1.0)


def trained_parameters(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that the optimizer trains, each once, with their paths in the model.

    Raises:
        ConfigError: the optimizer holds none that need a gradient.
    """
    paths = {id(parameter): path for path, parameter in model.named_parameters()}
    found: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                path = paths.get(id(parameter), f"outside.{len(found)}")
                found.setdefault(id(parameter), (path, parameter))
    if not found:
        raise ConfigError("the optimizer holds no parameter that needs a gradient")
    return list(found.values())


class _OverRanks:
    """Joins the norms of parameters of which some are sharded into that of the whole.

    Of the others each rank takes its own, as `clip_grad_norm_` does.
    """

    def __init__(self, spread: list[int], copies: list[int], whole: list[int], device: Any) -> None:
        self._spread = torch.tensor(spread, device=device)
        self._whole = torch.tensor(whole, dtype=torch.int64, device=device)
        self._weights = 1.0 / torch.tensor(copies, dtype=torch.float64, device=device)

    @classmethod
    def of(cls, parameters: list[torch.nn.Parameter]) -> "_OverRanks | None":
        """None where no parameter is sharded."""
        spread = [place for place, one in enumerate(parameters) if is_distributed(one)]
        if not spread:
            return None
        copies = [num_copies(parameters[place], num_ranks(None)) for place in spread]
        whole = sorted(set(range(len(parameters))) - set(spread))
        return cls(spread, copies, whole, parameters[0].device)

    def total(self, norms: torch.Tensor) -> torch.Tensor:
        """L2 norm `[]` of all from those of this rank's parts `[P]`; collective."""
        squares = (norms.index_select(0, self._spread).square() * self._weights).sum()
        torch.distributed.all_reduce(squares)
        return (squares + norms.index_select(0, self._whole).square().sum()).sqrt()
