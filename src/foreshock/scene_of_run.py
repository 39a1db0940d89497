"""The scene of an incident, put together from its run directory; the run is only read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foreshock.core.errors import SnapshotError
from foreshock.core.program import Program
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk, RealDisk
from foreshock.incident_case import IncidentCase, view_for
from foreshock.quiet_disk import QuietDisk
from foreshock.recipes import Recipe, standard
from foreshock.replaying import MicroBatches, Replay
from foreshock.scene import STATES, Scene
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.parts import GlobalRandomPart, clone_tree
from foreshock.window import SETTLE_STEPS

_MOST_STEPS: Final = 64
_LEAD_STEPS: Final = 3
_PALM_STEPS: Final = 100
_OLDER_STEPS: Final = 20


def scene_of(
    run_dir: Path,
    program: Program,
    recipe: Recipe | None = None,
    *,
    incident: int | None = None,
    disk: Disk | None = None,
) -> Scene:
    """The scene of an incident of a run, which is only read and may go on meanwhile.

    Args:
        run_dir: the run.
        program: built anew with the settings of the run. It is used up.
        recipe: what the run was watched with.
        incident: its number; by default the last.
        disk: where the run lies.

    Raises:
        RunDirError: there is no such incident.
        SnapshotError: no snapshot from before the onset is left that can be used.
        StreamError: the program's data is not that of the run.
        JournalError: the run's records are damaged.
    """
    disk = disk if disk is not None else RealDisk()
    recipe = recipe if recipe is not None else standard()
    random = clone_tree(GlobalRandomPart().capture())
    case = IncidentCase(view_for(disk, run_dir, program), incident)
    store = DiskStore(QuietDisk(disk), run_dir / "snapshots")
    replay = Replay(program, recipe, run_dir, case.before, disk=disk, states=STATES)
    try:
        clean = _usable(replay, case.clean_snapshots(store), case)
        older = _older(replay, case.clean_snapshots(store), case)
        suspect = next((ref for ref in case.suspect_snapshots(store) if _can_go(replay, ref)), None)
        replay.go_to(clean.id)
        past = [place for _, places in replay.recent for place in places][::-1]
        lead: list[MicroBatches] = []
        steps: list[MicroBatches] = []
        last = min(case.plan_step, case.alarm_step + _MOST_STEPS)
        for step in range(clean.step + 1, last + 1):
            if (batches := replay.draw()) is None:
                break
            (lead if step < case.onset_step else steps).append(batches)
        if not steps:
            raise SnapshotError(f"{run_dir}: the data ends before the onset of the incident")
        later = _later(replay, case.set_aside_until, len(steps) + SETTLE_STEPS)
        return Scene(
            replay,
            recipe,
            steps=steps,
            alarmed=case.alarmed,
            num_alarmed=case.num_alarmed,
            clean=clean.id,
            lead=lead,
            older=None if older is None else older.id,
            suspect=None if suspect is None else suspect.id,
            suspect_after=0 if suspect is None else suspect.step - case.onset_step + 1,
            before_alarm=case.alarm_step - case.onset_step,
            past=past,
            later=later,
            recorded=case.recorded(clean.step + 1),
            usual_rate=case.usual_rate,
            case=case,
            random=random,
        )
    except BaseException:
        replay.close()
        GlobalRandomPart().restore(random)
        raise


def _can_go(replay: Replay, ref: SnapshotRef) -> bool:
    try:
        replay.go_to(ref.id)
    except SnapshotError:
        return False
    return True


def _usable(replay: Replay, refs: Sequence[SnapshotRef], case: IncidentCase) -> SnapshotRef:
    """The newest that can be restored, with a few steps before the onset if there is such a
    one: that a replay is the run's is seen in them."""
    far = [ref for ref in refs if case.onset_step - ref.step > _LEAD_STEPS]
    for ref in [*far, *refs]:
        if _can_go(replay, ref):
            return ref
    there = ", ".join(ref.id for ref in refs)
    why = f"none of {there} can be restored" if refs else "none is left"
    raise SnapshotError(
        f"{case.view.run_dir}: a replay begins with a healthy snapshot from before step "
        f"{case.onset_step}, where incident {case.incident.id} began, and {why}. "
        "Keep more of them: disk_steps and disk_keep of the recipe's cadence"
    )


def _older(replay: Replay, refs: Sequence[SnapshotRef], case: IncidentCase) -> SnapshotRef | None:
    """The newest from 100 steps before the onset, as far as PaLM went back; else the oldest
    from 20 on. In it all of the incident's series are watched already."""
    series = {one for _, one in case.alarmed}
    fit = [ref for ref in refs if ref.step and case.onset_step - ref.step >= _OLDER_STEPS]
    far = [ref for ref in fit if case.onset_step - ref.step >= _PALM_STEPS]
    for ref in [*far, *reversed([ref for ref in fit if ref not in far])]:
        if _can_go(replay, ref) and not series & replay.not_ready().keys():
            return ref
    return None


def _later(replay: Replay, position: int, num_steps: int) -> list[MicroBatches]:
    """Steps of what follows a raw position; fewer where the data ends."""
    total = replay.stream.order.total
    if total is not None and position >= total:
        return []
    replay.stream.load_state_dict({"position": max(position, replay.stream.position)})
    found: list[MicroBatches] = []
    while len(found) < num_steps and (batches := replay.draw()) is not None:
        found.append(batches)
    return found
