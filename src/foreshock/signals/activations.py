"""How large what each block gives is, and which of its channels are dead or saturated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.anatomy import anatomy_at
from foreshock.core.names import (
    ACTIVATION_ABSMAX,
    ACTIVATION_RMS,
    DEAD_CHANNEL_SHARE,
    GLOBAL,
    SATURATED_CHANNEL_SHARE,
    series_name,
)
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
from foreshock.norms import local, size_and_peak
from foreshock.taps import Tap


class _Gathered:
    """What has been seen of one module in the step in progress, a number a forward."""

    def __init__(self, owner: "_AttachedActivations") -> None:
        self._owner = owner
        self.sizes: list[torch.Tensor | float] = []
        self.largest: list[torch.Tensor | float] = []
        self.peaks: torch.Tensor | None = None

    def glance(self, found: torch.Tensor) -> bool:
        """`see` without an operator of torch, if one fused pass will do."""
        owner, signal = self._owner, self._owner.signal
        if not owner.clock.is_due(signal.interval_steps):
            return True
        both = None if signal.channels or not found.numel() else passes.size_and_peak(found)
        if both is None:
            return False
        self.sizes.append(both[0])
        self.largest.append(both[1])
        return True

    def see(self, found: torch.Tensor) -> None:
        owner, signal = self._owner, self._owner.signal
        if not owner.clock.is_due(signal.interval_steps):
            return
        value = local(found)
        if not value.numel():  # nor may a rank's part of it have elements
            return
        rows = value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value.reshape(-1, 1)
        every = min(1 if signal.exact else signal.every_tokens, len(rows))
        size, largest = size_and_peak(value, rows[owner.clock.step % every :: every])
        self.sizes.append(size)
        self.largest.append(largest)
        if signal.channels:
            peaks = torch.linalg.vector_norm(rows, torch.inf, dim=0).to(torch.float32)
            self.peaks = peaks if self.peaks is None else torch.maximum(self.peaks, peaks)

    def sums(self, device: torch.device) -> torch.Tensor:
        """Root of the sum of mean squares, number of forwards, largest magnitude, `[3]`."""
        if not self.sizes:
            return torch.zeros(3, dtype=torch.float64, device=device)
        both = (*self.sizes, *self.largest)
        values = torch.stack(
            [torch.as_tensor(one, dtype=torch.float64, device=device) for one in both]
        )
        sizes, largest = values.split(len(self.sizes))
        count = torch.full((), len(self.sizes), dtype=torch.float64, device=device)
        return torch.stack([torch.linalg.vector_norm(sizes), count, largest.amax()])

    def plain_sums(self) -> tuple[float, float, float] | None:
        """`sums` where plain numbers were gathered; else None."""
        num = len(self.sizes)
        if num == 1 and isinstance(self.sizes[0], float):
            return self.sizes[0], 1.0, float(self.largest[0])
        if self._owner.signal.channels or not all(isinstance(one, float) for one in self.sizes):
            return None
        sizes, largest = np.array(self.sizes), np.array(self.largest)
        return float(np.linalg.norm(sizes)), float(num), float(largest.max(initial=0.0))

    def forget(self) -> None:
        self.sizes.clear()
        self.largest.clear()
        self.peaks = None


class _AttachedActivations(Attached):
    def __init__(
        self,
        modules: Sequence[tuple[str, torch.nn.Module]],
        device: torch.device,
        site: Site,
        signal: "ActivationsSignal",
    ) -> None:
        self.signal, self.clock = signal, site.clock
        self._device = device
        self._gathered = [_Gathered(self) for _ in modules]
        kinds = [ACTIVATION_RMS, ACTIVATION_ABSMAX]
        kinds_of_partials = (Reduction.NORM, Reduction.SUM, Reduction.MAX)
        self.reductions = [kind for kind in kinds_of_partials for _ in modules]
        if signal.channels:
            kinds += [DEAD_CHANNEL_SHARE, SATURATED_CHANNEL_SHARE]
            self.reductions += [Reduction.MEAN] * (2 * len(modules))
        self.series = tuple(
            series_name(kind.name, name or GLOBAL) for kind in kinds for name, _ in modules
        )
        self._num = len(modules)
        self._taps = [
            Tap(
                module,
                site.timed("activations", gathered.see),
                device=device,
                glance=site.timed("activations", gathered.glance),
            )
            for gathered, (_, module) in zip(self._gathered, modules, strict=True)
        ]

    def measure(self, moment: Moment) -> torch.Tensor | Values:
        plain = [one.plain_sums() for one in self._gathered]
        if all(one is not None for one in plain):
            self.forget()
            return np.array(plain, dtype=np.float64).T.reshape(-1)
        sums = torch.stack([one.sums(self._device) for one in self._gathered])
        parts = [sums.T.reshape(-1)]
        if self.signal.channels:
            parts += [self._share(_dead), self._share(self._saturated)]
        found = torch.cat(parts)
        self.forget()
        return found

    def _share(self, of: "Callable[[torch.Tensor], torch.Tensor]") -> torch.Tensor:
        """Share of channels of which it is so, of each module `[M]`; 0 where none was seen."""
        nothing = torch.zeros((), dtype=torch.float64, device=self._device)
        return torch.stack(
            [
                nothing if one.peaks is None else of(one.peaks).to(nothing).mean()
                for one in self._gathered
            ]
        )

    def _saturated(self, peaks: torch.Tensor) -> torch.Tensor:
        return peaks > self.signal.saturated_ratio * peaks.nanmedian()

    def finish(self, partials: Values, committed: bool) -> Values:
        sizes, forwards, *others = partials.reshape(-1, self._num)
        found = np.stack([sizes / np.sqrt(forwards), *others])
        found[:, forwards == 0] = MISSING
        return found.reshape(-1)

    def forget(self) -> None:
        for one in self._gathered:
            one.forget()

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.forget()

    def detach(self) -> None:
        for tap in self._taps:
            tap.close()


def _dead(peaks: torch.Tensor) -> torch.Tensor:
    return peaks == 0


@dataclass(frozen=True, kw_only=True)
class ActivationsSignal(Signal):
    """Root mean square and largest magnitude of each block's output and the last norm's.

    The first is exact. The second is exact on a CPU; on an accelerator it looks at every eighth
    token, another set each step, so that it is a lower bound; `exact` looks at all. Mean of
    squares over micro-steps and ranks. A block that did not run in a step has no value.

    Args:
        exact: look at every token for the largest magnitude.
        every_tokens: else, at one token in this many.
        channels: also record the share of channels that are zero for every token of the step
            (dead), and of those whose peak is `saturated_ratio` times the median peak.
        saturated_ratio: our choice: outlier channels of trained models stand above 20 times.

    Reference: Dettmers et al. 2022 (LLM.int8), for outlier channels.
    """

    name: ClassVar[str] = "activations"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    passes: ClassVar[str] = (
        "one over each block's output; not fused, another for the largest magnitude"
    )
    exact: bool = False
    every_tokens: int = 8
    channels: bool = False
    saturated_ratio: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "every_tokens")

    @property
    def exactness(self) -> Exactness:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Exact if asked for, else a lower bound for the largest magnitude."""
        return Exactness.EXACT if self.exact else Exactness.BOUND

    def attach(self, site: Site) -> Attached | None:
        anatomy = anatomy_at(site)
        paths = [block.path for block in anatomy.blocks]
        if anatomy.last_norm is not None:
            paths.append(anatomy.last_norm)
        modules = [(anatomy.plain(path), site.model.get_submodule(path)) for path in paths]
        if not modules:
            return None
        device = site.parameters[0][1].device
        return _AttachedActivations(modules, device, site, self)
