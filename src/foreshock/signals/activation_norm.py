"""How large the activations are that reach the last norm layer."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.anatomy import anatomy_at
from foreshock.core.names import ACTIVATION_NORM, GLOBAL, series_name
from foreshock.core.signal import (
    MISSING,
    Attached,
    Exactness,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)
from foreshock.fused import passes
from foreshock.norms import local, root_mean_square
from foreshock.taps import Tap


class _AttachedActivation(Attached):
    reductions = (Reduction.NORM, Reduction.SUM)

    def __init__(
        self, name: str, module: torch.nn.Module, device: torch.device, site: Site, interval: int
    ) -> None:
        self.series = (series_name(ACTIVATION_NORM.name, name or GLOBAL),)
        self._clock, self._interval = site.clock, interval
        self._device = device
        self._seen: list[torch.Tensor | float] = []
        """Root mean square of each forward of the step so far."""
        self._tap = Tap(
            module,
            site.timed("activation_norm", self._see),
            where="input",
            device=device,
            glance=site.timed("activation_norm", self._glance),
        )

    def _glance(self, found: torch.Tensor) -> bool:
        if not self._clock.is_due(self._interval):
            return True
        both = passes.size_and_peak(found) if found.numel() else None
        if both is not None:
            self._seen.append(both[0])
        return both is not None

    def _see(self, found: torch.Tensor) -> None:
        if self._clock.is_due(self._interval) and (value := local(found)).numel():
            self._seen.append(root_mean_square(value))

    def measure(self, moment: Moment) -> "torch.Tensor | Values":
        if self._seen and all(isinstance(one, float) for one in self._seen):
            found = np.array([np.linalg.norm(self._seen), len(self._seen)])  # pyright: ignore[reportArgumentType, reportCallIssue] - numbers, as asked just before
            self.forget()
            return found
        count = torch.full((), len(self._seen), dtype=torch.float64, device=self._device)
        size = torch.zeros_like(count)
        if self._seen:  # a root, since squares would leave the range of fp32
            size = torch.linalg.vector_norm(
                torch.stack(
                    [
                        torch.as_tensor(one, dtype=count.dtype, device=count.device)
                        for one in self._seen
                    ]
                )
            )
        self.forget()
        return torch.stack([size, count])

    def finish(self, partials: Values, committed: bool) -> Values:
        size, forwards = partials
        return np.array([size / np.sqrt(forwards) if forwards else MISSING])

    def forget(self) -> None:
        self._seen.clear()

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.forget()

    def detach(self) -> None:
        self._tap.close()


@dataclass(frozen=True, kw_only=True)
class ActivationNormSignal(Signal):
    """Root mean square of what enters the last norm layer, over all tokens and channels.

    What *enters*: after the layer the size is normalised away. Mean of squares over the
    step's micro-steps and ranks; evaluation passes do not count, and a forward that
    checkpointing computes twice counts once. Models without a norm layer have no such signal.

    Reference: OPT-175B log book (the last layer's activation norm rises before the loss
    scale falls).
    """

    name: ClassVar[str] = "activation_norm"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "one over the last norm layer's input"

    def attach(self, site: Site) -> Attached | None:
        anatomy = anatomy_at(site)
        if anatomy.last_norm is None:
            return None
        path = anatomy.last_norm
        module = site.model.get_submodule(path)
        device = site.parameters[0][1].device
        return _AttachedActivation(anatomy.plain(path), module, device, site, self.interval_steps)
