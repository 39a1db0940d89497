"""Observation: all signals of a step in one buffer, read by the host a fixed lag later."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.signal import Attached, Moment, Phase, Signal, Site


class Row(NamedTuple):
    """One step as the host reads it.

    Attributes:
        step: optimizer step.
        committed: whether the update was made.
        values: `[S]` float32, in the order of `Observation.series`.
    """

    step: int
    committed: bool
    values: NDArray[np.float32]


class Observation:
    """Attaches signals to a model and collects their values without waiting.

    Values travel to the host in one copy a step; `read` hands a step out once `lag_steps`
    later ones have been measured.

    Args:
        signals: what to measure.
        site: where.
        lag_steps: see `Recipe`.

    Raises:
        ConfigError: two signals give a series of the same name.
    """

    def __init__(self, signals: tuple[Signal, ...], site: Site, lag_steps: int) -> None:
        self._lag_steps = lag_steps
        self._attached: list[tuple[Phase, str, Attached]] = []
        try:
            for signal in signals:
                attached = signal.attach(site)
                if attached is not None:
                    self._attached.append((signal.phase, signal.name, attached))
        except BaseException:
            self.detach()
            raise
        self._attached.sort(key=lambda entry: entry[0] is Phase.UPDATE)
        names = [name for _, _, attached in self._attached for name in attached.series]
        doubled = sorted(name for name, count in Counter(names).items() if count > 1)
        if doubled:
            self.detach()
            raise ConfigError(f"two signals measure {doubled[0]!r}; leave one of them out")
        self.series = tuple(names)
        self.update_series = frozenset(
            name
            for phase, _, attached in self._attached
            if phase is Phase.UPDATE
            for name in attached.series
        )
        self._device = site.parameters[0][1].device
        self._measured: list[torch.Tensor] = []
        self._pending: deque[tuple[int, torch.Tensor, Any]] = deque()

    @property
    def num_pending(self) -> int:
        """Steps measured but not read yet."""
        return len(self._pending)

    def before_update(self, moment: Moment) -> None:
        """Measure what is there before the update."""
        self._measured = []
        for phase, _, attached in self._attached:
            if phase is Phase.GRADIENT:
                self._measured.append(self._flat(attached.measure(moment)))
            else:
                attached.prepare(moment)

    def after_update(self, moment: Moment, step: int, commit: torch.Tensor) -> None:
        """Measure what is there after it, and send the step on its way to the host."""
        for phase, _, attached in self._attached:
            if phase is Phase.UPDATE:
                self._measured.append(self._flat(attached.measure(moment)))
        verdict = commit.to(torch.float32).reshape(1).to(self._device)
        packed = torch.cat([verdict, *self._measured])
        ready = None
        if packed.is_cuda:
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            host.copy_(packed, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            packed = host
        self._pending.append((step, packed, ready))

    def read(self, *, drain: bool = False) -> Iterator[Row]:
        """Hand out the steps that are due: all but the last `lag_steps`, or all of them.

        One that is not asked for waits for the next call.
        """
        keep = 0 if drain else self._lag_steps
        while len(self._pending) > keep:
            step, packed, ready = self._pending.popleft()
            if ready is not None:
                ready.synchronize()
            values = packed.cpu().numpy()
            yield Row(step, bool(values[0]), values[1:])

    def forget(self) -> None:
        """Drop what has not been read: time went back to before it."""
        self._pending.clear()

    def detach(self) -> None:
        """Leave the model exactly as it was."""
        for _, _, attached in self._attached:
            attached.detach()

    def state_dict(self) -> dict[str, Any]:
        """State of the signals that have any."""
        return {name: attached.state_dict() for _, name, attached in self._attached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for _, name, attached in self._attached:
            if name in state:
                attached.load_state_dict(state[name])

    def _flat(self, values: Any) -> torch.Tensor:
        if isinstance(values, torch.Tensor):
            return values.detach().to(self._device, torch.float32).reshape(-1)
        parts = [
            value.detach().to(self._device, torch.float32).reshape(1)
            if isinstance(value, torch.Tensor)
            else torch.full((1,), value, dtype=torch.float32, device=self._device)
            for value in values
        ]
        return torch.cat(parts)
