"""The steps of a window of data, trained again on one state with any of their samples."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, final

import numpy as np

from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ProgramError
from foreshock.core.minimal import Key
from foreshock.core.names import GRAD_NORM, LOSS, PARAM_NORM, series_name
from foreshock.core.stats import MAD_TO_SD
from foreshock.data.sample import tokens_of
from foreshock.replaying import KEPT, MicroBatches, Replay

SETTLE_STEPS: Final = 10
"""Steps after the window in which an alarm may still come: `Policy.confirm_within_steps`."""

_OUTLIER_Z: Final = 4.0
_MAX_LOOKED_AT: Final = 4096
_MAX_REFERENCE: Final = 256
_FEWEST_REFERENCE: Final = 32
_TOKEN_SAMPLES: Final = 64
_WHOLE: Final = frozenset(series_name(one.name) for one in (LOSS, GRAD_NORM, PARAM_NORM))

Alarmed = Collection[tuple[str, str]]
"""Detector and series of the alarms that count."""


class Seen(NamedTuple):
    """What was seen in some steps.

    Attributes:
        alarmed: those in which an alarm that counts was raised.
        broken: whether one of them was of a value that is not finite.
        num_steps: that were trained.
    """

    alarmed: frozenset[int]
    broken: bool
    num_steps: int


def watch(
    replay: Replay, steps: Iterable[MicroBatches], alarmed: Alarmed, *, enough: float
) -> Seen:
    """Train steps on the state as it is, and note those in which the alarms of a trouble come.

    It ends when as many steps as are enough have one, or when one is of a value that is not
    finite: also where that is the loss, the gradient or a weight norm and was not among those.
    """
    found: set[int] = set()
    num_steps = 0
    for batches in steps:
        num_steps += 1
        for alarm in replay.train(batches):
            broken = alarm.kind is AlarmKind.NONFINITE
            if (alarm.detector, alarm.series) in alarmed or (broken and alarm.series in _WHOLE):
                found.add(alarm.step)
                if broken:
                    return Seen(frozenset(found), True, num_steps)
        if len(found) >= enough:
            break
    return Seen(frozenset(found), False, num_steps)


def step_of(positions: Sequence[int], size: int) -> MicroBatches:
    """One step's positions shared out among micro-steps of this size."""
    return [positions[at : at + size] for at in range(0, len(positions), size)]


def key_at(replay: Replay, position: int) -> Key:
    """The name of the sample at a raw position."""
    found = replay.stream.order.locate(position)
    return found.source, found.index


@final
class Window:
    """The steps of a window, on a state that was kept, with any of its samples.

    Args:
        replay: what trains them.
        steps: of the window.
        past: raw positions of samples that trained without an alarm, the newest first; they
            take the place of samples that are left out.
        alarmed: alarms that count.
        state: name of the state, as it was kept.
        keys: samples that can be left out; None for all.

    Attributes:
        items: number of each sample that can be left out.
        places: where each of them stands.
        samples_per_step: of the run.
        num_replays: how often the window was trained.
        steps_replayed: steps in all.
    """

    def __init__(
        self,
        replay: Replay,
        steps: Sequence[MicroBatches],
        past: Sequence[int],
        alarmed: Alarmed,
        *,
        state: str = KEPT,
        keys: Collection[Key] | None = None,
    ) -> None:
        self._replay = replay
        self._past = past
        self._alarmed = alarmed
        self._state = state
        self.steps = steps
        self.items: dict[Key, int] = {}
        self.places: list[int] = []
        self.samples_per_step = sum(len(micro) for micro in steps[0]) if steps else 0
        self.num_replays = 0
        self.steps_replayed = 0
        window = [one for step in steps for micro in step for one in micro]
        for position in window:
            key = key_at(replay, position)
            if (keys is None or key in keys) and key not in self.items:
                self.items[key] = len(self.items)
                self.places.append(position)
        self._window = [(one, self.items.get(key_at(replay, one))) for one in window]
        self._unusual: frozenset[int] | None = None

    def groups(self) -> list[list[int]]:
        """The samples in order, those with an unusual loss in the state apart."""
        everything, unusual = range(len(self.places)), self._find_unusual()
        groups = [
            [one for one in everything if one not in unusual],
            [one for one in everything if one in unusual],
        ]
        return [group for group in groups if group]

    def alarmed_steps(self, kept: frozenset[int], *, enough: int) -> int:
        """Steps with an alarm that counts where just these samples are admitted.

        It ends when there are enough; a value that is not finite is enough by itself.
        """
        self._replay.back(self._state)
        self.num_replays += 1
        steps = self.steps if len(kept) == len(self.items) else self._packed(kept)
        seen = watch(self._replay, [*steps, *self.settling()], self._alarmed, enough=enough)
        self.steps_replayed += seen.num_steps
        return max(enough, len(seen.alarmed)) if seen.broken else len(seen.alarmed)

    def settling(self) -> list[MicroBatches]:
        """Steps of the past, in which an alarm may still come."""
        return self.of_past(SETTLE_STEPS)

    def of_past(self, num_steps: int) -> list[MicroBatches]:
        """Steps of the past: never those that fill up the window's first step."""
        size, num = self.samples_per_step, len(self._past)
        places = [self._past[n % num] for n in range(size, size * (num_steps + 1))]
        return [self._step_of(places[at : at + size]) for at in range(0, len(places), size)]

    def tokens_per_sample(self) -> float | None:
        """Mean number of tokens in a sample of the window; None where none are recognised."""
        stream = self._replay.stream
        some = [tokens_of(stream.sample(place)) for place in self.places[:_TOKEN_SAMPLES]]
        lengths = [len(one) for one in some if one is not None]
        return sum(lengths) / len(lengths) if lengths else None

    def _find_unusual(self) -> frozenset[int]:
        """Samples of which the state's loss is far from that of samples before."""
        if self._unusual is None:
            self._unusual = frozenset()
            with suppress(ProgramError):  # a model that cannot take a sample alone
                self._unusual = self._far()
        return self._unusual

    def _far(self) -> frozenset[int]:
        if len(self.places) > _MAX_LOOKED_AT:
            return frozenset()
        self._replay.back(self._state)
        usual = np.array([self._replay.loss_at(one) for one in self._past[:_MAX_REFERENCE]])
        losses = np.array([self._replay.loss_at(one) for one in self.places])
        usual = usual[np.isfinite(usual)]
        if len(usual) < _FEWEST_REFERENCE:
            return frozenset()
        middle = float(np.median(usual))
        spread = MAD_TO_SD * float(np.median(np.abs(usual - middle)))
        with np.errstate(all="ignore"):
            far = ~(np.abs(losses - middle) <= _OUTLIER_Z * spread)
        return frozenset(np.flatnonzero(far).tolist())

    def _packed(self, kept: frozenset[int]) -> list[MicroBatches]:
        """Full steps of the samples of the window that are admitted, unusual ones first.

        What a last step lacks is of the past; of unusual ones, the same again.
        """
        far = self._find_unusual()
        unusual = [self.places[item] for item in sorted(kept & far)]
        admitted = kept - far
        rest = [one for one, item in self._window if item is None or item in admitted]
        size = self.samples_per_step
        unusual += [unusual[n % len(unusual)] for n in range(-len(unusual) % size)]
        rest += [self._past[n % len(self._past)] for n in range(-len(rest) % size)]
        whole = unusual + rest
        return [self._step_of(whole[at : at + size]) for at in range(0, len(whole), size)]

    def _step_of(self, positions: Sequence[int]) -> MicroBatches:
        return step_of(positions, self._replay.stream.batch_size)
