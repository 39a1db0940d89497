"""Runs real steps with every signal on, and keeps what the slow reference needs of each."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from foreshock.attachment import site_of
from foreshock.core.reading import is_absent
from foreshock.core.signal import Attached, Moment, Signal, is_missing
from foreshock.observation import Observation
from foreshock.signals.activation_norm import ActivationNormSignal
from foreshock.signals.activations import ActivationsSignal
from foreshock.signals.grad_extremes import GradExtremesSignal
from foreshock.signals.gradients import GradientSignal
from foreshock.signals.loss import LossSignal
from foreshock.signals.moments import MomentsSignal
from foreshock.signals.output_logits import OutputLogitsSignal
from foreshock.signals.param_norm import ParamNormSignal
from foreshock.signals.precision import PrecisionSignal
from foreshock.signals.schedule import ScheduleSignal
from foreshock.signals.update_ratio import UpdateRatioSignal
from foreshock.update import Update, trained_parameters
from tests.reference import signals as reference

EXACT: tuple[Signal, ...] = (
    LossSignal(),
    GradientSignal(per_parameter=True),
    GradExtremesSignal(exact=True, count_entries=True),
    ParamNormSignal(interval_steps=1),
    UpdateRatioSignal(),
    MomentsSignal(),
    ActivationNormSignal(),
    ActivationsSignal(exact=True, channels=True, saturated_ratio=1.5),
    OutputLogitsSignal(exact=True),
    PrecisionSignal(),
    ScheduleSignal(),
)

Optimizers = dict[str, Callable[[Any], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.9, 0.95), fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=False),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
}


class Recording:
    """A model with all signals attached.

    Args:
        model: trained by `optimizer`.
        feed: a forward pass; returns the loss `[]` or the losses of samples `[B]`.
        clip: as a Guard would fold it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        feed: Callable[[], torch.Tensor],
        *,
        clip: float | None = 1.0,
        scaler: Any = None,
        signals: Sequence[Signal] = EXACT,
        per_sample: bool = False,
    ) -> None:
        self.model, self.optimizer, self.feed = model, optimizer, feed
        self.clip, self.scaler, self.per_sample = clip, scaler, per_sample
        named = trained_parameters(model, optimizer)
        self.update = Update(optimizer, named, scaler=scaler, clip=clip)
        self.site = site_of(
            model, optimizer, named, scaler=scaler, clip=clip, per_sample=per_sample
        )
        self.observation = Observation(tuple(signals), self.site, 0)
        self.paths = dict(self.site.parameters)
        self.groups = dict(zip(self.paths, self.site.groups, strict=True))
        self.first: dict[str, reference.Array] | None = None
        self.loss = reference.Loss(LossSignal().decay)
        self.skipped: list[bool] = []
        self.step_number = 0
        anatomy = self.site.anatomy
        outputs = [block.path for block in anatomy.blocks]
        if anatomy.last_norm is not None:
            outputs.append(anatomy.last_norm)
        self._hooks: list[Any] = []
        self.outputs = {
            anatomy.plain(path) or "global": self._listen(path, "output") for path in outputs
        }
        self.entering = None
        if anatomy.last_norm is not None:
            name = anatomy.plain(anatomy.last_norm) or "global"
            self.entering = (name, self._listen(anatomy.last_norm, "input"))
        self.logits = None if anatomy.head is None else self._listen(anatomy.head, "output")

    def close(self) -> None:
        self.observation.detach()
        for hook in self._hooks:
            hook.remove()

    def step(
        self,
        *,
        micro_steps: int = 1,
        gate_limit: float = math.inf,
        full: bool = True,
        spoil: Callable[[dict[str, torch.Tensor | None]], None] | None = None,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Make a step; return what was measured, without what is absent, and what is true.

        The latter, which takes long, only if `full`.
        `spoil` may change the gradients, unscaled, before they are looked at.
        """
        self.step_number += 1
        self._clear()
        losses, samples = [], None
        for _ in range(micro_steps):
            found = self.feed()
            samples = found.detach().reshape(-1) if self.per_sample else None
            losses.append(found.mean().detach())
            self.update.backward(found.mean() / micro_steps)
        scale = None if self.scaler is None else float(self.scaler.get_scale())
        if spoil is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
                self.update._scaler = None
            spoil({path: one.grad for path, one in self.paths.items()})
        sizes, total = self.update.gradient_sizes()
        grads = {path: reference.array(one.grad, one) for path, one in self.paths.items()}
        before = {path: reference.array(one) for path, one in self.paths.items()}
        lr = self.update.lr(1.0)
        moment = Moment(
            step=self.step_number,
            loss=torch.stack(losses).mean(),
            grad_norms=sizes.norms,
            grad_largest=sizes.largest,
            grad_num_zeros=sizes.num_zeros,
            grad_norm=total,
            lr=lr,
            samples_loss=samples,
            used_factor=self.update.clip_factor(total),
        )
        with torch.no_grad():
            self.observation.before_update(moment)
        if self.scaler is not None:
            self.update._scaler = self.scaler
        commit = self.update.commit_or_skip(total, gate_limit, 1.0)
        with torch.no_grad():
            self.observation.after_update(moment, commit)
        (row,) = self.observation.read(drain=True)
        assert row.step == self.step_number and row.committed == bool(commit)
        self.skipped.append(not row.committed)
        kept = ~is_absent(row.values)
        measured = {
            name: float(value)
            for name, value, there in zip(self.observation.series, row.values, kept, strict=True)
            if there
        }
        if not full:
            return measured, {}
        truth = self._truth(float(moment.loss), samples, grads, before, lr, scale)
        return measured, truth

    def _truth(
        self, loss: float, samples: Any, grads: Any, before: Any, lr: float, scale: float | None
    ) -> dict[str, float]:
        after = {path: reference.array(one) for path, one in self.paths.items()}
        if self.first is None:
            self.first = after
        group = self.optimizer.param_groups[0]
        eps = float(group.get("eps", 0.0))
        total = reference.norm_of([reference.norm(one) for one in grads.values()])
        factor = 1.0 if self.clip is None else min(1.0, self.clip / (total + 1e-6))
        if math.isnan(total):
            factor = math.nan
        with np.errstate(all="ignore"):
            found = self.loss.of(loss, None if samples is None else reference.array(samples))
            found |= reference.gradients(grads, self.groups, clip=self.clip, eps=eps)
            for path, one in grads.items():
                found.setdefault(f"grad_norm/{path}", reference.norm(one))
            found |= reference.extremes(grads, self.groups)
            found |= reference.parameters(after, self.first, self.groups)
            found |= reference.update(before, after, self.groups)
            low = [p for p, one in self.paths.items() if one.dtype in (torch.bfloat16, torch.half)]
            if low and not self.skipped[-1]:
                found["lost_update_share/global"] = reference.lost_share(before, after, grads, low)
            used = {path: one * factor for path, one in grads.items()}
            found |= self._moments(used, eps)
            found |= reference.precision(grads, scale=scale, skipped=self.skipped)
            if self.outputs and all(self.outputs.values()):
                found |= reference.activations(self.outputs, saturated_ratio=1.5)
            if self.entering is not None and self.entering[1]:
                found |= reference.activation_norm(*self.entering)
            if self.logits:
                found |= reference.output(self.logits)
        found["lr/global"] = lr
        if scale is not None:
            found["loss_scale/global"] = scale
        return found

    def _moments(self, used: Any, eps: float) -> dict[str, float]:
        group = self.optimizer.param_groups[0]
        if not {"betas", "alpha", "momentum"} & group.keys():
            return {}
        states = {path: self.optimizer.state.get(one, {}) for path, one in self.paths.items()}

        def of(*keys: str) -> dict[str, reference.Array]:
            return {
                path: reference.array(
                    next((states[path][key] for key in keys if states[path].get(key) is not None),
                         None),
                    one,
                )
                for path, one in self.paths.items()
            }  # fmt: skip

        adaptive = None
        if "betas" in group or "alpha" in group:
            beta2 = group["betas"][1] if "betas" in group else None
            adaptive = reference.Adaptive(beta2, eps)
        steps = [float(state["step"]) for state in states.values() if "step" in state]
        return reference.moments(
            of("exp_avg", "momentum_buffer"),
            of("exp_avg_sq", "square_avg"),
            used,
            self.groups,
            num_updates=steps[0] if steps else 0.0,
            adaptive=adaptive,
        )

    def _clear(self) -> None:
        for seen in self.outputs.values():
            seen.clear()
        if self.entering is not None:
            self.entering[1].clear()
        if self.logits is not None:
            self.logits.clear()

    def _listen(self, path: str, where: str) -> list[reference.Array]:
        seen: list[reference.Array] = []
        module = self.model.get_submodule(path)

        def keep(found: Any) -> None:
            if module.training and torch.is_grad_enabled():
                one = found[0] if isinstance(found, tuple) else found
                seen.append(reference.array(one))

        if where == "input":
            self._hooks.append(module.register_forward_pre_hook(lambda _, args: keep(args)))
        else:
            self._hooks.append(module.register_forward_hook(lambda _m, _a, out: keep(out)))
        return seen


def differences(
    measured: dict[str, float], truth: dict[str, float], *, rel: float = 1e-5, tiny: float = 1e-38
) -> dict[str, tuple[float, float]]:
    """Series whose value is not the truth: (measured, true). NaN equals NaN, Inf equals Inf."""
    assert measured.keys() == truth.keys(), measured.keys() ^ truth.keys()
    found: dict[str, tuple[float, float]] = {}
    for name, value in measured.items():
        true = truth[name]
        same = value == true or (math.isnan(value) and math.isnan(true))
        if math.isinf(value) and abs(true) > np.finfo(np.float32).max:
            same = (value > 0) == (true > 0)
        if not same and not abs(value - true) <= rel * abs(true) + tiny:
            found[name] = (value, true)
    return found


def values_of(attached: Attached, moment: Moment, *, committed: bool = True) -> dict[str, float]:
    """What `Observation` makes of one measurement, on its way through fp32; without MISSING."""
    partials = attached.measure(moment)
    if not isinstance(partials, torch.Tensor):
        partials = torch.tensor([float(one) for one in partials])
    packed = partials.to(torch.float32).reshape(-1).numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        found = attached.finish(packed, committed)
    kept = ~is_missing(np.asarray(found, np.float64))
    named = zip(attached.series, found, kept, strict=True)
    return {name: float(value) for name, value, there in named if there}
