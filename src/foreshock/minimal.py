"""Minimal quarantine: of what an incident set aside, what is needed to bring it back."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from foreshock.core.bisection import Isolation, isolate
from foreshock.core.errors import StreamError
from foreshock.core.minimal import Key, Minimal, Tokens
from foreshock.core.names import LOSS, series_name
from foreshock.core.program import Program
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk, RealDisk
from foreshock.incident_case import view_for
from foreshock.journal import RunView
from foreshock.quiet_disk import QuietDisk
from foreshock.recipes import Recipe, standard
from foreshock.replaying import MicroBatches, Replay
from foreshock.set_aside import SetAside
from foreshock.snapshots.disk import DiskStore
from foreshock.window import Window, key_at

BUDGET: Final = 64
"""Replays. Our choice: both ends of a bad region in a window of 800 samples are found to a few
samples, and a replay is as many steps as were set aside."""

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
    view = view_for(disk, run_dir, program)
    case = SetAside(view, incident)
    snapshot = case.snapshot(DiskStore(QuietDisk(disk), run_dir / "snapshots"))
    replay = Replay(program, recipe, run_dir, case.before, disk=disk)
    try:
        search = _Search(replay, case, snapshot, recipe.policy.confirm_steps, tell or _nobody)
        found = isolate(search.groups, search.reproduces, budget=budget, is_spent=is_spent)
        return _result(case, search, found, budget, exact=search.exact(view))
    finally:
        replay.close()


@final
class _Search:
    """The steps of the window, on the state just before them, with any of its samples."""

    def __init__(
        self, replay: Replay, case: SetAside, snapshot: SnapshotRef, confirm_steps: int, tell: Tell
    ) -> None:
        self._replay = replay
        self._case = case
        self._tell = tell
        self.snapshot = snapshot
        self._lead_steps = 0
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
            self._lead_steps += 1
            past += flat
        replay.keep()
        steps: list[MicroBatches] = []
        while batches is not None and place < case.stop:
            steps.append(batches)
            place, batches = replay.stream.position, replay.draw()
        there = {self._key(one) for step in steps for micro in step for one in micro} & case.keys
        if not there:
            raise StreamError(
                f"{case.run_dir}: none of the samples of incident {case.incident.id} stands in "
                "its window as the run had it"
            )
        if not past:  # nothing trained before: what comes after has to do
            while len(past) < len(there) and batches is not None:
                past += [one for micro in batches for one in micro]
                batches = replay.draw()
        past = [one for one in past if self._key(one) not in case.keys][::-1]
        if not past:
            raise StreamError(f"{case.run_dir}: the run has no data but what was set aside")
        self.window = Window(replay, steps, past, case.alarmed, keys=case.keys)
        self.groups = self.window.groups()
        usual = self.window.alarmed_steps(frozenset(), enough=confirm_steps)
        self._comes_without = usual >= confirm_steps
        self._least_steps = usual + 1
        self._losses: dict[int, float] = {}

    def reproduces(self, kept: frozenset[int]) -> bool:
        """Whether the incident's alarms come again with just these samples of the window."""
        if kept:
            num_alarmed = self.window.alarmed_steps(kept, enough=self._least_steps)
            found = num_alarmed >= self._least_steps
        else:
            found = self._comes_without
        num, num_replays = len(self.window.items), self.window.num_replays
        if len(kept) == num:
            self._losses = dict(self._replay.losses)
        said = "it comes again" if found else "it does not come"
        self._tell(f"replay {num_replays}: {len(kept)} of {num} samples, {said}")
        return found

    @property
    def steps_replayed(self) -> int:
        """Steps trained in all."""
        return self._lead_steps + self.window.steps_replayed

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

    def _key(self, position: int) -> Key:
        return key_at(self._replay, position)


def _nobody(_: str) -> None:
    pass


def _result(
    case: SetAside, search: _Search, found: Isolation, budget: int, *, exact: bool | None
) -> Minimal:
    window = search.window
    keys = list(window.items)
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
        snapshot=search.snapshot.id,
        num_replays=window.num_replays,
        budget=budget,
        steps_replayed=search.steps_replayed,
        tokens=Tokens.of(
            window.tokens_per_sample(),
            samples_per_step=window.samples_per_step,
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
