"""Observation: all signals of a step in one buffer, read by the host a fixed lag later."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.meter import Meter
from foreshock.core.reading import ABSENT
from foreshock.core.signal import Attached, Moment, Phase, Reduction, Signal, Site, is_missing
from foreshock.taps import recompile

Join = Callable[[torch.Tensor, Sequence[Reduction]], torch.Tensor]
"""Makes one vector of partials `[K]` of those of all ranks, in one collective."""


class Row(NamedTuple):
    """One step as the host reads it.

    Attributes:
        step: optimizer step.
        committed: whether the update was made.
        values: `[S]` float32, in the order of `Observation.series`; ABSENT where a series
            was not due in this step.
        findings: sentences on what is certainly wrong, e.g. which rank holds other weights.
        stop_signal: the number of a signal that some rank had been asked to stop by; 0 for none.
    """

    step: int
    committed: bool
    values: NDArray[np.float32]
    findings: tuple[str, ...] = ()
    stop_signal: int = 0


class _Entry(NamedTuple):
    """A signal at its place: its columns of a row are `values[first:last]`."""

    signal: Signal
    attached: Attached
    first: int
    last: int


class _Pending(NamedTuple):
    """A step on its way to the host: its parts are those of `entries`, `sizes[i]` columns each."""

    step: int
    packed: "torch.Tensor | NDArray[np.float32]"
    entries: "list[_Entry]"
    sizes: list[int]
    ready: Any


class Observation:
    """Attaches signals to a model and collects their values without waiting.

    Values travel to the host in one copy a step, and over ranks in one collective; `read`
    hands a step out once `lag_steps` later ones have been measured.

    Args:
        signals: what to measure.
        site: where.
        lag_steps: see `Recipe`.
        join: how ranks are joined; None where there is one, or where all have the same.
        stop_signal: see `Row`, of this rank; where ranks are joined it travels with each step,
            so that all hear of it at the same one.

    Raises:
        ConfigError: two signals give a series of the same name.
    """

    def __init__(
        self,
        signals: tuple[Signal, ...],
        site: Site,
        lag_steps: int,
        *,
        join: Join | None = None,
        num_ranks: int = 1,
        stop_signal: Callable[[], int] = lambda: 0,
    ) -> None:
        self._stop_signal = stop_signal
        self._lag_steps = lag_steps
        self._clock = site.clock
        self._join = join
        self._num_ranks = num_ranks
        found: list[tuple[Signal, Attached]] = []
        self._entries: list[_Entry] = []
        try:
            for signal in signals:
                attached = signal.attach(site)
                if attached is not None:
                    found.append((signal, attached))
        except BaseException:
            for _, attached in found:
                attached.detach()
            raise
        found.sort(key=lambda entry: entry[0].phase is Phase.UPDATE)
        if site.meter is not None:
            for signal, attached in found:
                _time(site.meter, signal.name, attached)
        first = 0
        for signal, attached in found:
            last = first + len(attached.series)
            self._entries.append(_Entry(signal, attached, first, last))
            first = last
        names = [name for entry in self._entries for name in entry.attached.series]
        doubled = sorted(name for name, count in Counter(names).items() if count > 1)
        if doubled:
            self.detach()
            raise ConfigError(f"two signals measure {doubled[0]!r}; leave one of them out")
        self.series = tuple(names)
        self.update_series = frozenset(
            name
            for entry in self._entries
            if entry.signal.phase is Phase.UPDATE
            for name in entry.attached.series
        )
        self.intervals = {
            name: entry.signal.interval_steps
            for entry in self._entries
            for name in entry.attached.series
        }
        """Steps between the measurements of each series."""
        self._device = site.parameters[0][1].device
        self._due: list[_Entry] = []
        self._measured: list[torch.Tensor | NDArray[Any]] = []
        self.num_partials = 0
        """Numbers that the last step sent to the host."""
        self._early: dict[int, torch.Tensor | NDArray[Any]] = {}
        self._pending: deque[_Pending] = deque()
        recompile()

    @property
    def num_pending(self) -> int:
        """Steps measured but not read yet."""
        return len(self._pending)

    @property
    def attached(self) -> tuple[tuple[Signal, Attached], ...]:
        """Every signal that found something to measure."""
        return tuple((entry.signal, entry.attached) for entry in self._entries)

    def before_clip(self, moment: Moment) -> None:
        """Measure what needs the true gradients now; `before_update` then leaves it out."""
        self._clock.step = moment.step
        self._early = {
            id(entry.attached): self._flat(entry.attached.measure(moment))
            for entry in self._entries
            if entry.attached.needs_true_gradients
            and self._clock.is_due(entry.signal.interval_steps)
        }

    def before_update(self, moment: Moment) -> None:
        """Measure what is there before the update."""
        self._clock.step = moment.step
        self._due = [e for e in self._entries if self._clock.is_due(e.signal.interval_steps)]
        self._measured = []
        for entry in self._due:
            if entry.signal.phase is Phase.UPDATE:
                entry.attached.prepare(moment)
            elif (early := self._early.get(id(entry.attached))) is not None:
                self._measured.append(early)
            else:
                self._measured.append(self._flat(entry.attached.measure(moment)))
        self._early = {}

    def after_update(self, moment: Moment, commit: torch.Tensor) -> None:
        """Measure what is there after it, and send the step on its way to the host."""
        for entry in self._due:
            if entry.signal.phase is Phase.UPDATE:
                self._measured.append(self._flat(entry.attached.measure(moment)))
        sizes = [len(part) for part in self._measured]
        if self._device.type == "cpu" and self._join is None:
            arrays = [one if isinstance(one, np.ndarray) else one.numpy() for one in self._measured]
            with np.errstate(all="ignore"):  # beyond the range of fp32 is Inf
                together = np.concatenate([[float(commit)], *arrays]).astype(np.float32)
            self._send(moment, together, sizes, None)
            return
        verdict = commit.to(torch.float32).reshape(1).to(self._device)
        head = [verdict]
        if self._join is not None:
            head.append(torch.full_like(verdict, self._stop_signal()))
        packed = torch.cat([*head, *map(self._tensor, self._measured)])
        if self._join is not None:
            packed, sizes = self._over_ranks(packed, sizes)
        ready = None
        if packed.is_cuda:
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            host.copy_(packed, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            packed = host
        self._send(moment, packed, sizes, ready)

    def _send(self, moment: Moment, packed: Any, sizes: list[int], ready: Any) -> None:
        self.num_partials = len(packed)
        self._pending.append(_Pending(moment.step, packed, self._due, sizes, ready))
        self._clock.step = moment.step + 1

    def read(self, *, drain: bool = False) -> Iterator[Row]:
        """Hand out the steps that are due: all but the last `lag_steps`, or all of them.

        One that is not asked for waits for the next call.
        """
        keep = 0 if drain else self._lag_steps
        while len(self._pending) > keep:
            one = self._pending.popleft()
            if one.ready is not None:
                one.ready.synchronize()
            yield self._row(one)

    def forget(self, last_step: int = 0) -> None:
        """Drop what has not been read: time went back to just after `last_step`."""
        self._pending.clear()
        self._clock.step = last_step + 1
        self.drop_step()

    def drop_step(self) -> None:
        """Drop what the micro-steps of an unfinished step have gathered."""
        self._early = {}
        for entry in self._entries:
            entry.attached.forget()

    def detach(self) -> None:
        """Leave the model exactly as it was."""
        for entry in self._entries:
            entry.attached.detach()
        recompile()

    def notes(self) -> dict[str, str]:
        """What is not measured as hoped for, by `signal/scope`."""
        return {
            f"{entry.signal.name}/{scope}": note
            for entry in self._entries
            for scope, note in entry.attached.notes().items()
        }

    def state_dict(self) -> dict[str, Any]:
        """State of the signals that have any."""
        return {entry.signal.name: entry.attached.state_dict() for entry in self._entries}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for entry in self._entries:
            if entry.signal.name in state:
                entry.attached.load_state_dict(state[entry.signal.name])

    def _row(self, one: _Pending) -> Row:
        packed = one.packed
        array = packed.cpu().numpy() if isinstance(packed, torch.Tensor) else packed
        partials = array.astype(np.float64)
        committed = bool(partials[0])
        values = np.full(len(self.series), ABSENT, dtype=np.float32)
        stop_signal, at = (0, 1) if self._join is None else (int(partials[1]), 2)
        with np.errstate(all="ignore"):
            for entry, size in zip(one.entries, one.sizes, strict=True):
                found = entry.attached.finish(partials[at : at + size], committed)
                mine = values[entry.first : entry.last]
                np.copyto(mine, found, where=~is_missing(found), casting="same_kind")
                at += size
        found = tuple(said for entry in one.entries for said in entry.attached.findings())
        return Row(one.step, committed, values, found, stop_signal)

    def _over_ranks(self, packed: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, list[int]]:
        assert self._join is not None
        kinds = [Reduction.SAME, Reduction.MAX]
        wide: list[int] = []
        for entry, size in zip(self._due, sizes, strict=True):
            own = list(entry.attached.reductions) or [Reduction.SAME] * size
            kinds += own
            wide.append(size + (self._num_ranks - 1) * own.count(Reduction.EACH))
        return self._join(packed, kinds), wide

    def _tensor(self, values: "torch.Tensor | NDArray[Any]") -> torch.Tensor:
        if isinstance(values, torch.Tensor):
            return values
        with np.errstate(all="ignore"):
            narrow = np.ascontiguousarray(values, dtype=np.float32)
        return torch.from_numpy(narrow).to(self._device)

    def _flat(self, values: Any) -> "torch.Tensor | NDArray[Any]":
        if isinstance(values, np.ndarray):
            return values.reshape(-1)
        if isinstance(values, torch.Tensor):
            return values.detach().to(self._device, torch.float32).reshape(-1)
        parts = [
            value.detach().to(self._device, torch.float32).reshape(1)
            if isinstance(value, torch.Tensor)
            else torch.full((1,), value, dtype=torch.float32, device=self._device)
            for value in values
        ]
        return torch.cat(parts)


def _time(meter: Meter, name: str, attached: Attached) -> None:
    """Time what a signal does between forward and update, and on the host."""
    attached.prepare = meter.wrap(name, attached.prepare)
    attached.measure = meter.wrap(name, attached.measure)
    attached.finish = meter.wrap(name, attached.finish)
