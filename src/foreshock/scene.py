"""The states and the data of an incident, on which experiments train: the run is only read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, Self, final

from foreshock.core.case import BatchFinding
from foreshock.core.confirmation import USUAL_RATE
from foreshock.core.errors import SnapshotError
from foreshock.core.experiment import Experiment, Result
from foreshock.core.names import GRAD_NORM, LOSS, series_name
from foreshock.data.findings import batch_findings
from foreshock.incident_case import IncidentCase, Recorded
from foreshock.levels import Levels, compared, differing
from foreshock.recipes import Recipe
from foreshock.replaying import MicroBatches, Replay
from foreshock.snapshots.parts import GlobalRandomPart, clone_tree
from foreshock.trial import (
    Arena,
    BudgetSpentError,
    Change,
    NoResultError,
    Trial,
    is_back,
    largest,
    median,
)
from foreshock.window import SETTLE_STEPS, Alarmed, Window, step_of, watch

STATES: Final = 8
"""States that a replay must be able to hold for a scene."""

_CLEAN, _BEFORE, _ALARM = "clean", "before the onset", "before the first alarm"
_LEAST_SHARE: Final = 3
_LOSS: Final = series_name(LOSS.name)
_NORM: Final = series_name(GRAD_NORM.name)
_NO_ARENA: Final = "the trouble comes in no replay, so that there is nothing to change about it"
_MAX_PAST: Final = 4096


@final
class Scene:
    """An incident of a run, ready to be trained again with one thing changed.

    States are put back bit by bit after every trial. What an experiment changes is changed for
    its steps only; `close` puts back the global generators and the modes of modules as well.

    "It comes back" means here: so many steps raise alarms of the incident's own detectors on
    the incident's own series that it is a third of what the run had, and not chance at the
    rate at which the run has them anyway; or a loss, gradient or weight is not finite; or the
    loss, or else a series of the incident's own, stands off the level of healthy steps before
    the state for as long as it did in the run (a detector takes a lasting level for healthy).

    Args:
        replay: at the clean state, unless `clean` names another; able to hold `STATES` states.
        recipe: what it watches with.
        steps: of the window, from the onset on.
        alarmed: detector and series of the incident's alarms.
        num_alarmed: steps in which the run had one.
        clean: name of the state before the onset, kept by the replay or a snapshot's id.
        lead: steps between that state and the onset.
        older: name of an older clean state, if there is one.
        suspect: name of a state that the run itself had since the trouble began, if one is left.
        suspect_after: how many steps of the window that state contains.
        before_alarm: steps of the window before the one that first raised an alarm.
        past: raw positions of samples that trained without an alarm, the newest first.
        later: steps of what follows, none of it suspect.
        recorded: what the run measured, of the lead and the window.
        usual_rate: share of steps with such alarms in health.
        case: the incident of the run that it was made of.
        random: what the global generators were before the replay was made; as they are now.
    """

    def __init__(
        self,
        replay: Replay,
        recipe: Recipe,
        *,
        steps: Sequence[MicroBatches],
        alarmed: Alarmed,
        num_alarmed: int = 3,
        clean: str | None = None,
        lead: Sequence[MicroBatches] = (),
        older: str | None = None,
        suspect: str | None = None,
        suspect_after: int = 0,
        before_alarm: int = 0,
        past: Sequence[int] = (),
        later: Sequence[MicroBatches] = (),
        recorded: Recorded | None = None,
        usual_rate: float = USUAL_RATE,
        case: IncidentCase | None = None,
        random: Any = None,
    ) -> None:
        self.replay = replay
        self.recipe = recipe
        self.steps = list(steps)
        self.num_steps = len(self.steps) + SETTLE_STEPS
        """Steps that are trained for the window once."""
        self.lead = list(lead)
        self.alarmed = alarmed
        self.least = max(2 if num_alarmed > 1 else 1, -(-num_alarmed // _LEAST_SHARE))
        """Alarmed steps from which on it counts as back."""
        self.older = older
        self.suspect = suspect
        self.suspect_after = suspect_after
        self.before_alarm = min(before_alarm, max(0, len(self.steps) - 1))
        self.later = list(later)
        self.recorded = recorded if recorded is not None else Recorded((), {})
        self.case = case
        self.steps_trained = self._told_steps = 0
        self.on_step: Callable[[], object] = lambda: None
        self.is_spent: Callable[[], bool] = lambda: False
        self.exact: bool | None = None
        """Whether all readings of the lead were those of the run, bit by bit."""
        self.is_close: bool | None = None
        """Whether its losses were, within a tenth of their noise from step to step."""
        self._usual_rate = usual_rate
        self._random = clone_tree(GlobalRandomPart().capture()) if random is None else random
        self._modes = [(one, one.training) for one in replay.program.model.modules()]
        self._arena: list[Arena | None] = []
        self._known: dict[tuple[str, str], Trial] = {}
        self._usual: tuple[float, float] = (float("nan"), float("nan"))
        if clean is None:
            clean = _CLEAN
            replay.keep(clean)
        self.clean = clean
        self._go(clean)
        self.onset_step = replay.step + len(self.lead) + 1
        flat = [one for step in [*reversed(self.lead)] for micro in step for one in micro]
        self.past = [*flat, *past][:_MAX_PAST]
        self._note_usual()
        window = range(self.onset_step, self.onset_step + len(self.steps))
        self._levels = Levels(replay, self.recorded, alarmed, window)

    # ---- states -------------------------------------------------------------------------

    @property
    def before(self) -> str:
        """The state just before the onset, reached from the clean one."""
        if not self.lead:
            return self.clean
        if not self.replay.holds(_BEFORE):
            self._go(self.clean)
            for batches in self.counted(self.lead):
                self.replay.train(batches)
            self.replay.keep(_BEFORE)
            self._compare_lead()
        return _BEFORE

    @property
    def suspect_state(self) -> str:
        """The run's own state after the onset if there is one, else that of a replay, just
        before the first alarm."""
        if self.suspect is not None:
            return self.suspect
        if not self.before_alarm:
            return self.before
        if not self.replay.holds(_ALARM):
            self._go(self.before)
            for batches in self.counted(self.steps[: self.before_alarm]):
                self.replay.train(batches)
            self.replay.keep(_ALARM)
        return _ALARM

    def look(self, state: str) -> Replay:
        """The replay in a state, to look at."""
        self._go(state)
        return self.replay

    @property
    def arena(self) -> Arena | None:
        """Where the trouble comes with nothing changed; None where it does in no replay."""
        if not self._arena:
            self._arena = [self._find_arena()]
        return self._arena[0]

    def _find_arena(self) -> Arena | None:
        trial = self.again()
        if self.comes_back(trial):
            return Arena(state=self.before, steps=self.steps, is_real=False, trial=trial)
        if self.suspect is None:
            return None
        rest = self.steps[self.suspect_after :] or self.of_past(SETTLE_STEPS)
        trial = self.comes(rest, self.suspect)
        if self.comes_back(trial):
            return Arena(state=self.suspect, steps=rest, is_real=True, trial=trial)
        return None

    # ---- data ---------------------------------------------------------------------------

    def of_past(self, num_steps: int) -> list[MicroBatches]:
        """Steps of samples that trained without an alarm, those before the onset first."""
        if not self.past:
            return []
        size = sum(len(micro) for micro in self.steps[0])
        places = [self.past[n % len(self.past)] for n in range(size * num_steps)]
        micro = max(len(micro) for micro in self.steps[0])
        return [step_of(places[at : at + size], micro) for at in range(0, len(places), size)]

    def window(self, arena: Arena) -> Window:
        """The arena's steps, of which samples can be left out."""
        return Window(self.replay, arena.steps, self.past, self.alarmed, state=arena.state)

    def batch_findings(self) -> list[BatchFinding] | None:
        """What stands out in the window's samples against those before them."""
        places = [one for step in self.steps for micro in step for one in micro]
        return batch_findings(self.replay.stream, places, self.past[:512][::-1])

    # ---- trials -------------------------------------------------------------------------

    def again(self) -> Trial:
        """The window exactly, from the clean state; trained once, however often asked for."""
        key = (self.before, "window")
        if key not in self._known:
            self._known[key] = self.comes(self.steps, self.before)
        return self._known[key]

    def comes(
        self,
        batches: Sequence[MicroBatches],
        state: str,
        change: Change | None = None,
        *,
        settle: bool = True,
    ) -> Trial:
        """Train these steps on a state and count those in which the incident's alarms come.

        Afterwards some steps of the past are trained, in which an alarm may still come. It
        ends when enough alarms are seen.

        Args:
            batches: each with the micro-batches of a step.
            state: name of the state.
            change: holds for these steps.
            settle: whether steps of the past follow.

        Raises:
            SnapshotError: the state cannot be restored.
            ProgramError: the program's loss raises.
            BudgetSpentError: time is up.
        """
        rest = self.of_past(SETTLE_STEPS) if settle else []
        self._go(state)
        if state == self.older:
            self._levels.note_older()
        try:
            first = self.replay.step + 1
            with nullcontext() if change is None else change(self.replay):
                steps = self.counted([*batches, *rest])
                seen = watch(self.replay, steps, self.alarmed, enough=2 * self.least)
            trained = range(first, first + seen.num_steps)
            losses = [self.replay.losses.get(step, float("nan")) for step in trained]
            norms = self.values(_NORM, trained)
            judged, older = trained[: len(batches)], state == self.older
            shifted = self._levels.again(lambda one: self.values(one, judged), on_older=older)
        finally:
            self._go(state)
        loss, norm = self._usual
        return Trial(
            alarmed=seen.alarmed,
            broken=seen.broken,
            num_steps=seen.num_steps,
            losses=tuple(losses),
            norms=tuple(norms),
            excess_loss=largest(losses) - loss,
            excess_norm=largest(norms) / norm if norm else float("nan"),
            shifted=shifted,
        )

    def comes_back(self, trial: Trial, *, without: Trial | None = None) -> bool:
        """Whether the incident is back in a trial; what is in `without` too, where the same change
        was in force and no trouble can be, does not count.

        Raises:
            NoResultError: what was changed makes trouble of its own.
        """
        return is_back(trial, without, least=self.least, usual_rate=self._usual_rate)

    def cures(self, change: Change, *, controlled: bool = False) -> tuple[bool, Trial]:
        """Whether the trouble stays away with something changed, where it comes without.

        Args:
            change: what is changed.
            controlled: whether the change may raise alarms by itself, so that those which it
                raises on other data of a healthy state do not count.

        Raises:
            NoResultError: it comes nowhere, or the change makes trouble of its own.
        """
        arena = self.need_arena()
        trial = self.comes(arena.steps, arena.state, change)
        if not self.comes_back(trial):
            return True, trial
        if not controlled:
            return False, trial
        harmless = self.of_past(len(arena.steps))
        if self.comes_back(self.comes(harmless, self.before)):
            return False, trial  # it comes whatever the data: what the change adds is not seen
        without = self.comes(harmless, self.before, change)
        return not self.comes_back(trial, without=without), trial

    @property
    def is_advisory(self) -> bool:
        """Whether all of its alarms are advisory: they open no episode, in a replay either."""
        advisory = {one.name for one in self.recipe.detectors if one.advisory}
        return {detector for detector, _ in self.alarmed} <= advisory

    @property
    def nothing_to_cure(self) -> str:
        """Why nothing can be cured, in words; "" if it can, or if nobody has looked yet."""
        return _NO_ARENA if self._arena and self._arena[0] is None else ""

    def need_arena(self) -> Arena:
        """The arena.

        Raises:
            NoResultError: there is none.
        """
        if self.arena is None:
            raise NoResultError(_NO_ARENA)
        return self.arena

    def result(
        self, experiment: Experiment, outcome: str, statement: str, **figures: float
    ) -> Result:
        """What came of an experiment, with the steps that were trained since the last one."""
        num_steps, self._told_steps = self.steps_trained - self._told_steps, self.steps_trained
        return Result(
            experiment=experiment.name,
            outcome=outcome,
            outcomes=tuple(experiment.outcomes),
            statement=statement,
            figures=figures,
            num_steps=num_steps,
        )

    # ---- the rest -----------------------------------------------------------------------

    def close(self) -> None:
        """Take everything off the program; generators and modes are as they were before."""
        with suppress(SnapshotError):
            self._go(self.clean)
        self.replay.close()
        for module, mode in self._modes:
            module.training = mode
        GlobalRandomPart().restore(self._random)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go(self, state: str) -> None:
        if self.replay.holds(state):
            self.replay.back(state)
        else:
            self.replay.go_to(state)

    def counted(self, steps: Iterable[MicroBatches]) -> Iterator[MicroBatches]:
        """The steps, each counted as it is trained.

        Raises:
            BudgetSpentError: time is up.
        """
        for batches in steps:
            if self.is_spent():
                raise BudgetSpentError("the budget ended within it")
            self.steps_trained += 1
            self.on_step()
            yield batches

    def values(self, series: str, steps: Iterable[int]) -> list[float]:
        """What was measured in steps that were trained here; empty where it is not."""
        if series not in self.replay.series:
            return []
        place = self.replay.series.index(series)
        return [float(self.replay.rows[one][1][place]) for one in steps if one in self.replay.rows]

    def _note_usual(self) -> None:
        """What loss and gradient norm are before the onset, as the run or the lead has them."""
        steps, usual = range(self.onset_step - len(self.lead), self.onset_step), list[float]()
        for name in (_LOSS, _NORM):
            told = self.recorded.values(name)
            before = [value for step, value in told.items() if step < self.onset_step]
            usual.append(median(before or self.values(name, steps)))
        self._usual = (usual[0], usual[1])

    def _compare_lead(self) -> None:
        self._note_usual()
        steps = range(self.onset_step - len(self.lead), self.onset_step)
        self.exact, self.is_close = compared(self.replay, self.recorded, steps)

    def differs_from_run(self, step: int) -> list[str] | None:
        """Series that the run measured otherwise in a step, in order; None where unknown."""
        return differing(self.replay, self.recorded, step)
