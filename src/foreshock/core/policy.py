"""Policy: a pure function from diagnosis, history and budget to a plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from foreshock.core.action import Plan
from foreshock.core.budget import Limits
from foreshock.core.climb import Climb
from foreshock.core.confirmation import Tally, steps_to_confirm
from foreshock.core.errors import ConfigError
from foreshock.core.ladder import LADDER, RUNGS, WATCH, Rung, check_ladder, check_rung
from foreshock.core.planning import Defaults
from foreshock.core.preferences import PREFERENCES, check_preferences, order_of
from foreshock.core.situation import Situation

__all__ = ["Policy", "Situation"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Watch, skip, roll back and quarantine, further back with a lower rate, halt.

    A ladder of rungs, which a cause may ask for in another order. Within an incident
    nothing that has failed is repeated: each rollback after the first goes further back,
    sets more data aside, lowers the rate or changes something else. Trouble that comes back
    to a place where a recovery did not last begins at the rung after that.

    Args:
        confirm_steps: alarmed steps before an episode is more than an outlier. Fewer
            acts sooner and on more outliers. Where a run has more outliers than one in 200
            steps, as many are needed as make false confirmations no more frequent.
        confirm_within_steps: alarmed steps count if they are among the last so many; rare
            outliers far apart confirm nothing.
        confirm_again_steps: the same while an incident is open.
        quiet_steps: steps without an alarm after which an episode is over.
        doubt_steps: steps after the first alarm of an episode that is not confirmed, after
            which the model is probed: an update that went wrong once may have done its
            harm while the training loss shows nothing.
        settle_steps: steps beyond the last alarmed one after which a recovery is
            verified. Also how near to an earlier incident trouble counts as the same.
        data_suspicion: probability of the data being at fault from which on its window
            is set aside.
        max_skips_in_a_row: skipped updates before skipping counts as failed.
        skip_hold_steps: how long a lowered gate holds.
        lookahead: data set aside ahead of the watermark when a recovery has met the
            same trouble again, as a multiple of what the incident has set aside so
            far: doubling reaches the end of a bad region of any length in a few tries
            and sets aside at most about as much again.
        lr_factor: factor on the rate in a rung that lowers it.
        max_rollbacks_per_incident: then halt.
        max_rollbacks: in the whole run; then halt.
        max_samples_set_aside: in the whole run; times the sequence length, this is tokens.
        max_share_set_aside: likewise, as a share of the stream's samples, where it ends.
        min_lr_factor: what the factors on the rate may come to when multiplied.
        max_steps_retrained: steps that rollbacks may undo in the whole run.
        can_rollback: False for loops that cannot go back.
        watch_only: never act.
        ladder: names of rungs, in order of escalation; the last one halts.
        rungs: what each is.
        preferences: rungs that a cause asks for before the ladder, each as often as it is
            named; `watch` alone for a cause that asks for nothing.

    Raises:
        ConfigError: a setting is not allowed, or does not go with another.

    Reference: PaLM (restart about 100 steps before, skip 200 to 500 batches); OPT-175B
    (lower rate, tighter clip after a restart). Doubling look-ahead: our choice, because
    the length of a bad region is not known. Fourteen rollbacks an incident are what the
    ladder needs to its end, and 0.03 is five halvings of the rate: our choice.
    """

    confirm_steps: int = 3
    confirm_within_steps: int = 10
    confirm_again_steps: int = 2
    quiet_steps: int = 20
    doubt_steps: int = 3
    settle_steps: int = 10
    data_suspicion: float = 0.2
    max_skips_in_a_row: int = 3
    skip_hold_steps: int = 50
    lookahead: float = 1.0
    lr_factor: float = 0.5
    max_rollbacks_per_incident: int = 14
    max_rollbacks: int = 50
    max_samples_set_aside: int | None = None
    max_share_set_aside: float = 1.0
    min_lr_factor: float = 0.03
    max_steps_retrained: int | None = None
    can_rollback: bool = True
    watch_only: bool = False
    ladder: tuple[str, ...] = LADDER
    rungs: Mapping[str, Rung] = field(default_factory=lambda: dict(RUNGS))
    preferences: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(PREFERENCES))

    def __post_init__(self) -> None:
        for name in (
            "confirm",
            "confirm_within",
            "confirm_again",
            "quiet",
            "doubt",
            "settle",
            "skip_hold",
        ):
            value = getattr(self, f"{name}_steps")
            if value < 1:
                raise ConfigError(f"Policy.{name}_steps is {value}; it must be at least 1 step")
        for name in (
            "max_skips_in_a_row",
            "max_rollbacks_per_incident",
            "max_rollbacks",
            "max_samples_set_aside",
            "max_steps_retrained",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"Policy.{name} is {value}; it must be 0 or more")
        for name in ("data_suspicion", "max_share_set_aside"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"Policy.{name} is {getattr(self, name)}; it must be in [0, 1]")
        for name in ("lr_factor", "min_lr_factor"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"Policy.{name} is {getattr(self, name)}; it must be in (0, 1]")
        if not 0 <= self.lookahead < math.inf:
            raise ConfigError(
                f"Policy.lookahead is {self.lookahead}; it must be 0 or more, and finite"
            )
        for name, one in self.rungs.items():
            if name != WATCH:
                check_rung(f"Policy.rungs.{name}", one)
            elif one.actions:
                raise ConfigError(f"Policy.rungs.{WATCH} orders something; it is for watching on")
        check_ladder("Policy.ladder", self.ladder, self.rungs)
        check_preferences("Policy.preferences", self.preferences, self.rungs)

    @property
    def rungs_in_use(self) -> dict[str, Rung]:
        """The rungs that can be come to, by name."""
        if self.watch_only:
            return {}
        names = order_of([one for named in self.preferences.values() for one in named], self.ladder)
        return {
            name: self.rungs[name]
            for name in names
            if self.can_rollback or not self.rungs[name].goes_back
        }

    @property
    def actions(self) -> frozenset[str]:
        """Names of the actions that this policy cannot do without.

        What it orders where the loop can carry it out, and else passes over, is not among
        them.
        """
        rungs = self.rungs_in_use.values()
        return frozenset(name for one in rungs if not one.where_possible for name in one.names)

    def without(self, names: frozenset[str]) -> "Policy":
        """This policy without some rungs that it can do without."""
        preferences = {
            cause: tuple(name for name in preferred if name not in names)
            for cause, preferred in self.preferences.items()
        }
        ladder = tuple(name for name in self.ladder if name not in names)
        return replace(self, ladder=ladder, preferences=preferences)

    def due(
        self, tallies: Sequence[Tally], *, still_alarmed: bool, in_incident: bool, skips: int
    ) -> bool:
        """Whether an episode is more than outliers, so that it is worth a diagnosis.

        Args:
            tallies: of the last `confirm_within_steps`; one that is more than chance is enough.
            still_alarmed: whether the last step was one.
            in_incident: whether one is open.
            skips: skipped updates in a row.
        """
        usually = self.confirm_again_steps if in_incident else self.confirm_steps
        within = self.confirm_within_steps
        confirmed = any(
            one.num_alarmed >= steps_to_confirm(usually, one.rate, within) for one in tallies
        )
        return skips > self.max_skips_in_a_row or (still_alarmed and confirmed)

    def decide(self, situation: Situation) -> Plan | None:
        """Return the plan for a situation that is due or must be acted on; None to watch on."""
        now = situation
        if self.watch_only or (now.handled_by_scaler and not now.must_act):
            return None
        preferred = self.preferences.get(now.diagnosis.top.cause, ())
        pressed = now.must_act or now.consecutive_skips > self.max_skips_in_a_row
        if not pressed and (preferred == (WATCH,) or _is_skipping(now)):
            return None
        climb = Climb(
            ladder=self.ladder,
            rungs=self.rungs,
            preferred=[name for name in preferred if name != WATCH],
            pressed=pressed,
            can_rollback=self.can_rollback,
            settle_steps=self.settle_steps,
            limits=self._limits,
            defaults=self._defaults,
        )
        return climb.plan(now)

    @property
    def _limits(self) -> Limits:
        return Limits(
            rollbacks_per_incident=self.max_rollbacks_per_incident,
            rollbacks=self.max_rollbacks,
            samples_set_aside=self.max_samples_set_aside,
            share_set_aside=self.max_share_set_aside,
            lr_factor_floor=self.min_lr_factor,
            steps_retrained=self.max_steps_retrained,
        )

    @property
    def _defaults(self) -> Defaults:
        return Defaults(
            skip_hold_steps=self.skip_hold_steps,
            lookahead=self.lookahead,
            lr_factor=self.lr_factor,
            data_suspicion=self.data_suspicion,
        )


def _is_skipping(now: Situation) -> bool:
    """Whether the incident's last plan was to skip, and its gate still holds.

    The alarms go on meanwhile, since a gradient is measured before the gate; too many
    skips in a row are what tells that skipping has failed.
    """
    if not now.tried or not now.only_gradients:
        return False
    calls = now.tried[-1].plan.actions
    return any(
        call.name == "skip_update" and now.step <= call.arguments["last_step"] for call in calls
    )
