"""Minimal quarantine: of what an incident set aside, what is needed to bring it back."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

import numpy as np

from foreshock.core.bisection import Isolation, isolate
from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ProgramError, StreamError
from foreshock.core.minimal import Key, Minimal, Tokens
from foreshock.core.names import LOSS, series_name
from foreshock.core.program import Program
from foreshock.core.snapshot import SnapshotRef
from foreshock.data.sample import tokens_of
from foreshock.data.stream import Stream
from foreshock.durable import Disk, RealDisk
from foreshock.journal import Journal, RunView
from foreshock.quiet_disk import QuietDisk
from foreshock.recipes import Recipe, standard
from foreshock.replaying import MicroBatches, Replay
from foreshock.set_aside import SetAside
from foreshock.snapshots.disk import DiskStore
from foreshock.vetting import vet

BUDGET: Final = 64
"""Replays. Our choice: both ends of a bad region in a window of 800 samples are found to a few
samples, and a replay is as many steps as were set aside."""

_SETTLE_STEPS: Final = 10
"""Steps after the window in which an alarm may still come: `Policy.confirm_within_steps`."""
_OUTLIER_Z: Final = 4.0
_MAX_LOOKED_AT: Final = 4096
_MAX_REFERENCE: Final = 256
_FEWEST_REFERENCE: Final = 32
_TOKEN_SAMPLES: Final = 64

Tell = Callable[[str], None]


def minimize(
    run_dir: Path,
    program: Program,
    recipe: Recipe | None = None,
    *,
    incident: int | None = None,
    budget: int = BUDGET,
    is_spent: Callable[[], bool] = lambda: False,
    disk: Disk | None = None,
    tell: Tell | None = None,
) -> Minimal:
    """Find what of an incident's quarantine is needed to bring it back; the run is only read.

    From the last clean snapshot before the window the steps are trained again. Samples that
    are not admitted are replaced, each by one that trained before without an alarm, so that
    every admitted one stands in the step in which it stood. The incident counts as back when
    its series raise alarms of its detectors in more steps than without any of the samples: one
    alarmed step is enough, where policy asks for several, so that rather more is held.

    Args:
        run_dir: the run; it may go on meanwhile.
        program: built anew with the settings of the run. It is used up.
        recipe: what the run was watched with.
        incident: its number; by default the last recovered one that still holds samples.
        budget: replays that may be made, at least 3; each trains the window once.
        is_spent: whether time is up; asked before a replay. The search then ends with what it
            knows, after three replays at least.
        disk: where the run lies.
        tell: hears of each replay.

    Raises:
        RunDirError: there is no such incident, it was not recovered, or nothing of it is held.
        SnapshotError: no snapshot from before the window is left that can be used.
        StreamError: the program's data is not that of the run.
        ProgramError: the program's loss raises.
        JournalError: the run's records are damaged.
    """
    disk = disk if disk is not None else RealDisk()
    recipe = recipe if recipe is not None else standard()
    view = Journal.read(disk, run_dir)
    vet(view.records, run_dir)
    if not isinstance(program.stream, Stream):
        raise StreamError("a loader gives out each batch once, so its batches cannot be replayed")
    known = view.identity.get("stream") or {}
    if program.stream.describe()["fingerprint"] != known.get("fingerprint"):
        raise StreamError(
            f"{run_dir}: the program's data is not that of the run; give the seed, the steps "
            "and the overrides that it was started with"
        )
    case = SetAside(view, incident)
    snapshot = case.snapshot(DiskStore(QuietDisk(disk), run_dir / "snapshots"))
    replay = Replay(program, recipe, run_dir, case.before, disk=disk)
    try:
        scene = _Scene(replay, case, snapshot, recipe.policy.confirm_steps, tell or _nobody)
        found = isolate(scene.groups(), scene.reproduces, budget=budget, is_spent=is_spent)
        return _result(case, scene, found, budget, exact=scene.exact(view))
    finally:
        replay.close()


@final
class _Scene:
    """The steps of the window, on the state just before them, with any of its samples."""

    def __init__(
        self, replay: Replay, case: SetAside, snapshot: SnapshotRef, confirm_steps: int, tell: Tell
    ) -> None:
        self._replay = replay
        self._case = case
        self._tell = tell
        self.snapshot = snapshot
        self.steps_replayed = 0
        self.num_replays = 0
        replay.go_to(snapshot.id)
        past = [place for _, positions in replay.recent for place in positions]
        while True:
            # Samples that were brought back stand in their batch by where they stood once.
            place, batches = replay.stream.position, replay.draw()
            if batches is None or place >= case.stop:
                break
            flat = [position for micro in batches for position in micro]
            if any(self._key(position) in case.keys for position in flat):
                break
            replay.train(batches)
            self.steps_replayed += 1
            past += flat
        replay.keep()
        self.steps: list[MicroBatches] = []
        self.items: dict[Key, int] = {}
        self.places: list[int] = []
        while batches is not None and place < case.stop:
            self.steps.append(batches)
            for position in (one for micro in batches for one in micro):
                key = self._key(position)
                if key in case.keys and key not in self.items:
                    self.items[key] = len(self.items)
                    self.places.append(position)
            place, batches = replay.stream.position, replay.draw()
        if not self.items:
            raise StreamError(
                f"{case.run_dir}: none of the samples of incident {case.incident.id} stands in "
                "its window as the run had it"
            )
        self.samples_per_step = sum(len(micro) for micro in self.steps[0])
        if not past:  # nothing trained before: what comes after has to do
            while len(past) < len(self.items) and batches is not None:
                past += [one for micro in batches for one in micro]
                batches = replay.draw()
        self._past = [one for one in past if self._key(one) not in case.keys][::-1]
        if not self._past:
            raise StreamError(f"{case.run_dir}: the run has no data but what was set aside")
        window = [one for step in self.steps for micro in step for one in micro]
        self._window = [(one, self.items.get(self._key(one))) for one in window]
        self._unusual = self._find_unusual()
        usual = len(self._alarmed_steps(frozenset(), enough=confirm_steps))
        self._comes_without = usual >= confirm_steps
        self._least_steps = usual + 1
        self._losses: dict[int, float] = {}

    def groups(self) -> list[list[int]]:
        """The samples in order, those with an unusual loss in the clean state apart."""
        everything = range(len(self.places))
        groups = [
            [one for one in everything if one not in self._unusual],
            [one for one in everything if one in self._unusual],
        ]
        return [group for group in groups if group]

    def _find_unusual(self) -> frozenset[int]:
        """Samples of which the clean state's loss is far from that of samples before."""
        if len(self.places) > _MAX_LOOKED_AT:
            return frozenset()
        self._replay.back()
        try:
            usual = np.array([self._replay.loss_at(one) for one in self._past[:_MAX_REFERENCE]])
            losses = np.array([self._replay.loss_at(one) for one in self.places])
        except ProgramError:  # a model that cannot take a sample alone
            return frozenset()
        usual = usual[np.isfinite(usual)]
        if len(usual) < _FEWEST_REFERENCE:
            return frozenset()
        middle = float(np.median(usual))
        spread = 1.4826 * float(np.median(np.abs(usual - middle)))
        with np.errstate(all="ignore"):
            far = ~(np.abs(losses - middle) <= _OUTLIER_Z * spread)
        return frozenset(np.flatnonzero(far).tolist())

    def reproduces(self, kept: frozenset[int]) -> bool:
        """Whether the incident's alarms come again with just these samples of the window."""
        if kept:
            steps = self._alarmed_steps(kept, enough=self._least_steps)
            found = len(steps) >= self._least_steps
        else:
            found = self._comes_without
        if len(kept) == len(self.items):
            self._losses = dict(self._replay.losses)
        said = "it comes again" if found else "it does not come"
        self._tell(f"replay {self.num_replays}: {len(kept)} of {len(self.items)} samples, {said}")
        return found

    def tokens_per_sample(self) -> float | None:
        """Mean number of tokens in a sample of the window; None where none are recognised."""
        stream = self._replay.stream
        some = [tokens_of(stream.sample(place)) for place in self.places[:_TOKEN_SAMPLES]]
        lengths = [len(one) for one in some if one is not None]
        return sum(lengths) / len(lengths) if lengths else None

    def exact(self, view: RunView) -> bool | None:
        """Whether the steps before the onset had the losses that the run recorded."""
        attempt, name = self._case.incident.attempt, series_name(LOSS.name)
        onset = self._case.incident.onset_step
        try:
            block = view.readings(attempt, [name])
        except (LookupError, OSError):
            return None
        told = dict(zip(block.steps.tolist(), block.values[:, 0].tolist(), strict=True))
        pairs = [
            (value, told[step])
            for step, value in self._losses.items()
            if step in told and step < onset
        ]
        return all(a == b for a, b in pairs) if pairs else None

    def _alarmed_steps(self, kept: frozenset[int], *, enough: int) -> set[int]:
        """Steps with an alarm of the incident's own series and detectors; ends when enough."""
        self._replay.back()
        self.num_replays += 1
        found: set[int] = set()
        everything = len(kept) == len(self.items)
        steps = self.steps if everything else self._packed(kept)
        for batches in [*steps, *self._settling()]:
            for alarm in self._replay.train(batches):
                if (alarm.detector, alarm.series) in self._case.alarmed:
                    found.add(alarm.step)
                    if alarm.kind is AlarmKind.NONFINITE:
                        found.update(range(-enough, 0))  # that one is enough
            self.steps_replayed += 1
            if len(found) >= enough:
                break
        return found

    def _packed(self, kept: frozenset[int]) -> list[MicroBatches]:
        """Full steps of the samples of the window that are admitted, unusual ones first.

        What a last step lacks is of the past; of unusual ones, the same again.
        """
        unusual = [self.places[item] for item in sorted(kept & self._unusual)]
        admitted = kept - self._unusual
        rest = [one for one, item in self._window if item is None or item in admitted]
        size = self.samples_per_step
        unusual += [unusual[n % len(unusual)] for n in range(-len(unusual) % size)]
        rest += [self._past[n % len(self._past)] for n in range(-len(rest) % size)]
        whole = unusual + rest
        return [self._step_of(whole[at : at + size]) for at in range(0, len(whole), size)]

    def _step_of(self, positions: Sequence[int]) -> MicroBatches:
        """One step's positions shared out among its micro-steps."""
        size = self._replay.stream.batch_size
        return [positions[at : at + size] for at in range(0, len(positions), size)]

    def _settling(self) -> list[MicroBatches]:
        """Steps of the past, in which an alarm may still come."""
        size = self.samples_per_step
        places = [self._past[n % len(self._past)] for n in range(size * (_SETTLE_STEPS + 1))]
        return [self._step_of(places[at : at + size]) for at in range(size, len(places), size)]

    def _key(self, position: int) -> Key:
        found = self._replay.stream.order.locate(position)
        return found.source, found.index


def _nobody(_: str) -> None:
    pass


def _result(
    case: SetAside, scene: _Scene, found: Isolation, budget: int, *, exact: bool | None
) -> Minimal:
    keys = list(scene.items)
    cleared = {keys[item] for item in found.cleared}
    if not found.reproduced and exact is not True:
        cleared = set()  # a replay that is not the run's says nothing of its data
    needed = [keys[item] for item in found.needed]
    given_back = {
        entry: tuple(sorted(mine & cleared)) for entry, mine in case.held.items() if mine & cleared
    }
    stay = case.own - cleared
    own = tuple(key for key in needed if key in stay)
    undecided = case.keys - cleared - set(needed)
    return Minimal(
        incident=case.incident.id,
        num_plans=len(case.incident.plans),
        verdict=_verdict(found, len(needed) - len(own), exact=exact),
        needed=own,
        undecided=tuple(sorted(stay - set(own))),
        given_back=given_back,
        minimal=found.minimal and not undecided,
        reproduced=found.reproduced,
        without_any=found.without_any,
        exact=exact,
        snapshot=scene.snapshot.id,
        num_replays=scene.num_replays,
        budget=budget,
        steps_replayed=scene.steps_replayed,
        tokens=Tokens.of(
            scene.tokens_per_sample(),
            samples_per_step=scene.samples_per_step,
            steps_undone=case.steps_undone,
            held_before=len(case.own),
            held_after=len(stay),
        ),
    )


def _verdict(found: Isolation, num_blamed: int, *, exact: bool | None) -> str:
    if found.without_any:
        return "it comes back without any of the samples: look at the state, not at the data"
    if not found.reproduced and exact:
        return "it does not come back with all of the samples: the data is not what caused it"
    if not found.reproduced:
        return (
            "it does not come back, and the replay was not that of the run step by step: nothing "
            "can be told; replay with the program, settings and recipe of the run"
        )
    if found.minimal and num_blamed:
        return f"{num_blamed} of the samples that had been brought back are needed for it"
    if found.minimal:
        return "each of the samples that stay is needed to bring it back"
    return "samples that stay undecided were not looked at one by one: the budget ended"
