"""A run forked from an anchor and watched, without a Guard that would act."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks.diagnosis.plans import Plan
from benchmarks.diagnosis.runs import ANCHORS, EXTRA_SOURCE, Anchor, recipe
from benchmarks.recovery.matrix_healthy import hard_samples
from benchmarks.recovery.matrix_program import (
    BATCH_SIZE,
    NUM_SAMPLES,
    Windows,
    replace_samples,
    windows_at,
)
from foreshock.core.case import BatchFinding, Case
from foreshock.core.comparison import compare, growth_of
from foreshock.core.detector import Alarm
from foreshock.core.fault import DataFault, OrderFault, ProgramFault, StateFault
from foreshock.core.pressing import is_pressing
from foreshock.data.findings import batch_findings
from foreshock.driver import probes_of
from foreshock.durable import RealDisk
from foreshock.replaying import MicroBatches, Replay
from foreshock.verification import measure

_FORK_STEPS = 200  # between the data of forks: none of it is met twice
_RECENT_STEPS = 100
KEPT_STEPS: Final = 10
"""Steps between the states that are kept for experiments, as the Guard keeps them in memory."""
_STATES = 24
_SCALER_PATIENCE_SKIPS = 24  # as the Guard leaves a loss scaler alone


def state_at(step: int) -> str:
    """The name under which the state after a step is kept."""
    return f"step {step}"


class Watched:
    """Trains on from an anchor as the plan says; nothing is done about what it sees.

    Args:
        one: where it begins.
        plan: what is done to it.
        keeps: whether states are kept on the way, for experiments.

    Raises:
        ConfigError: from `advance`: this program holds nothing that the fault can damage.
    """

    def __init__(self, one: Anchor, plan: Plan, *, keeps: bool = False) -> None:
        self.plan = plan
        self._keeps = keeps
        self.policy = recipe().policy
        self._instead: dict[str, dict[int, Windows]] = {
            name: {} for name in ("code", "english", EXTRA_SOURCE)
        }
        self._replay = Replay(
            one.program(self._instead),
            recipe(),
            one.run_dir,
            (),
            disk=RealDisk(),
            states=_STATES if keeps else 1,
        )
        self._replay.go_to(one.snapshot_id)
        position = self._replay.stream.position + plan.seed // ANCHORS * _FORK_STEPS * BATCH_SIZE
        self._replay.stream.load_state_dict({"position": position})
        self.monitor = self._replay._monitor
        self._trained = list(self._replay.recent)
        self.batches: dict[int, MicroBatches] = {}
        """Raw positions of each micro-step, by step since the anchor."""
        self._other: dict[int, int] = {}  # raw positions that the sampler reads instead
        self._measured: list[tuple[int, Any]] = []
        self.said = ""
        self.changes = plan.changes
        """What the start before the trouble shows as changed."""
        self.advisories: list[Alarm] = []

    @property
    def step(self) -> int:
        """The last one."""
        return self._replay.step

    @property
    def replay(self) -> Replay:
        """What trains it; at the last step until it is taken elsewhere."""
        return self._replay

    @property
    def before(self) -> list[int]:
        """Raw positions that the anchor trained last, in order."""
        return [one for _, positions in self._replay.recent for one in positions]

    def drawn(self) -> MicroBatches:
        """Raw positions of the next step, as its sampler gives them."""
        batches = self._replay.draw()
        assert batches is not None, "the data ended before the run"
        return [[self._other.get(one, one) for one in batch] for batch in batches]

    @property
    def losses(self) -> dict[int, float]:
        """By step since the anchor."""
        return self._replay.losses

    def close(self) -> None:
        """Take the signals off the model."""
        self._replay.close()

    def advance(self) -> None:
        """Train one step, with the fault where it is due."""
        plan, step = self.plan, self.step + 1
        if plan.restart_after == self.step:
            self.monitor.resumed()
        if step in (plan.step - 10, plan.step - 5, plan.step):
            self._measured.append((self.step, self._measure()))
        if self._keeps and self.step % KEPT_STEPS == 0:
            self._replay.keep(state_at(self.step))
        if step == plan.step:
            self._strike()
        batches = self.batches[step] = self.drawn()
        self._trained.append((step, tuple(one for batch in batches for one in batch)))
        self._replay.train(batches)
        episode = set(map(id, self.monitor.episode))
        self.advisories += [one for one in self.monitor.raised if id(one) not in episode]

    def _strike(self) -> None:
        fault, plan, rng = self.plan.fault, self.plan, self.plan.rng("fault")
        program, stream = self._replay.program, self._replay.stream
        num_samples = plan.num_steps * BATCH_SIZE
        places = range(stream.position, stream.position + num_samples)
        if plan.restart_after is not None and (told := getattr(fault, "changes", None)):
            self.changes = tuple(told(program, plan.restart_after))
        if plan.kind == "unpredictable_batch":
            half = places[: BATCH_SIZE // 2]
            self._replace(replace_samples(program, half, lambda clean: hard_samples(clean, rng)))
        elif isinstance(fault, DataFault):
            if plan.own_source:
                self._other = dict(
                    zip(places, range(NUM_SAMPLES, stream.order.total), strict=False)
                )
                poisoned = fault.poison(windows_at(program, places), rng)
                found = [stream.order.locate(self._other[place]).index for place in places]
                self._replace({EXTRA_SOURCE: dict(zip(found, poisoned, strict=True))})
            else:
                self._replace(replace_samples(program, places, lambda one: fault.poison(one, rng)))
        elif isinstance(fault, OrderFault):
            read = fault.reorder(stream.position, num_samples, rng)
            self._other = dict(zip(places, read.tolist(), strict=True))
        elif isinstance(fault, StateFault):
            self.said = fault.inject(program.model, program.optimizer, rng)
        elif isinstance(fault, ProgramFault):
            self._replay.program, self.said = fault.change(program, rng)
            # A replay has taken the clip when it was made.
            self._replay._update._clip = self._replay.program.clip

    def _replace(self, found: dict[str, dict[int, Windows]]) -> None:
        for source, windows in found.items():
            self._instead[source].update(windows)

    # ---- what a Guard would do ------------------------------------------------------------

    def would_act(self) -> bool:
        """Whether a Guard would act on the episode as it is after the last step."""
        monitor, step = self.monitor, self.step
        committed = bool(monitor.timeline.committed[-1])
        alarms = [one for one in monitor.raised if one.step == step]
        if any(is_pressing(one, committed=committed) for one in alarms):
            return True
        due = self.policy.due(
            monitor.tallies(self.policy.confirm_within_steps),
            still_alarmed=monitor.still_alarmed,
            in_incident=False,
            skips=monitor.consecutive_skips,
        )
        return bool(due and monitor.episode) and not self._left_to_scaler()

    def _left_to_scaler(self) -> bool:
        if self._replay.program.scaler is None:
            return False
        overflows = all(
            one.signal == "grad_norm" and one.kind == "nonfinite" for one in self.monitor.episode
        )
        return overflows and self.monitor.consecutive_skips <= _SCALER_PATIENCE_SKIPS

    def harm(self) -> str:
        """What a probe finds if an unconfirmed episode is due for one; "" otherwise."""
        doubt = self.monitor.first_doubt()
        if doubt is None or self.step < doubt + self.policy.doubt_steps or not self._measured:
            return ""
        (step, before), near = self._measured[-1], self._measured[:-1]
        growth = growth_of(step, self.step, [one for one, _ in near])
        found = compare(before, self._measure(), [values for _, values in near], growth=growth)
        worse = [one.probe for one in found if not one.passed]
        self.monitor.answered(whole=not worse)
        return f"{', '.join(worse)} worse than before the onset, beyond noise" if worse else ""

    def _measure(self) -> dict[str, list[float]]:
        program = self._replay.program
        return measure(program.model, probes_of(program))

    # ---- the case -------------------------------------------------------------------------

    def case(self, alarms: Sequence[Alarm], *, harm: str = "") -> Case:
        """The case that a live run would have of these alarms, after the last step."""
        plan, program = self.plan, self._replay.program
        onset = min(alarm.onset_step for alarm in alarms)
        starts, changes = (0,), self.changes
        if plan.restart_after is not None and changes:  # without changes a start is no event
            starts = (0, plan.restart_after)
        mine = set(map(id, alarms))
        facts = {"has_scaler": program.scaler is not None, "precision": program.precision}
        return Case(
            timeline=self.monitor.timeline,
            alarms=tuple(alarms),
            facts={**facts, "harm": harm},
            batch_findings=self._findings(onset),
            advisories=tuple(
                one for one in self.advisories if one.step >= onset - 50 and id(one) not in mine
            ),
            starts=starts,
            changes=changes,
        )

    def _findings(self, onset: int) -> list[BatchFinding] | None:
        trained = self._trained[-_RECENT_STEPS:]
        window = [one for step, positions in trained if step >= onset for one in positions]
        before = [one for step, positions in trained if step < onset for one in positions]
        return batch_findings(self._replay.stream, window, before)


def excess(struck: dict[int, float], healthy: dict[int, float], first: int) -> float | None:
    """Mean of the loss above that of the healthy fork on the same steps, from a step on.

    None where there is none, or a loss of the struck run is not finite.
    """
    steps = [step for step in struck if step >= first and step in healthy]
    if not steps:
        return None
    found = float(np.mean([struck[step] - healthy[step] for step in steps]))
    return found if np.isfinite(found) else None
