"""A run that was taken up in another environment, in which attention is computed otherwise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
from torch.backends.cuda import flash_sdp_enabled, mem_efficient_sdp_enabled
from torch.nn.functional import scaled_dot_product_attention

from foreshock.calls import Answered
from foreshock.core.case import Change
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class ChangedKernel(ProgramFault):
    """Compute attention with a scale that another version of a kernel has by default.

    Logits are `d^(-1/2 + 1.5 * intensity)` times queries by keys, d being the width of a head: at
    1/3 they are not scaled at all. It works on calls of
    `torch.nn.functional.scaled_dot_product_attention` that give no scale of their own, in
    training and in probes alike, as an installed package does; not where fused kernels are
    switched off (`torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`), which is the reference.

    Args:
        intensity: 0 to 1.
        package: what the start record tells of: its name.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.01, +0.08 and +0.19
    after 75 steps, +0.05 to +0.15 at once. Attention logits grow by the factor at once; the
    gradient norm alarms in the first step at 1, nothing does below.

    No source: our choice, after kernels whose defaults changed with their version.
    """

    name: ClassVar[str] = "changed_kernel"
    cause: ClassVar[str] = "changed_environment"

    intensity: float = 1.0
    package: str = "attention-kernels"

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def changes(self, program: Program, step: int) -> tuple[Change, ...]:
        """What a start after `step` finds other than the start before."""
        if self.intensity == 0:
            return ()
        return (
            Change(step=step, kind="package", name=self.package, before="1.4.2", after="2.0.0"),
        )

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if self.intensity == 0:
            return program, "the kernel is what it was"
        loss = _Otherwise(program.loss, 1.5 * self.intensity)
        return replace(
            program, loss=loss
        ), f"attention is scaled by d^{1.5 * self.intensity - 0.5:.3g}"


class _Otherwise:
    """A loss in which attention has another scale."""

    def __init__(self, loss: Callable[[Any, Any], Any], power: float) -> None:
        self._loss = loss
        self._power = power

    def __call__(self, model: Any, batch: Any) -> Any:
        with Answered(scaled_dot_product_attention, self._scaled):
            return self._loss(model, batch)

    def _scaled(self, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if given.get("scale") is None and len(args) < 7 and _fused():
            query = args[0] if args else given["query"]
            given["scale"] = math.pow(query.shape[-1], self._power - 0.5)
        return scaled_dot_product_attention(*args, **given)


def _fused() -> bool:
    """Whether fused kernels may be used; the switches are those of every device."""
    return flash_sdp_enabled() or mem_efficient_sdp_enabled()
