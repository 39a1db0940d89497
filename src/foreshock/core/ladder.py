"""The escalation ladder as data: rungs, what each orders, and in which order they stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from foreshock.core.errors import ConfigError
from foreshock.core.nearest import did_you_mean

WATCH: Final = "watch"
"""The rung that does nothing: the run is watched on."""

HALT: Final = "halt"
PAUSE: Final = "pause"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One action of a rung, with the settings that do not depend on the situation.

    Args:
        action: name of the action.
        settings: its arguments, as far as policy does not work them out (steps, snapshots,
            windows, notes).
    """

    action: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One rung of the ladder.

    Args:
        actions: what is ordered, in this order. Empty for `watch` only.
        tries: how often it may be tried in one incident. What it goes back to, what it sets
            aside or by how much it lowers the rate differs from try to try.
        further_back: go to an older state than the one that has failed, even where the data
            is the suspect. Where it is not, every rollback does.
        cooldown_steps: steps after a plan of this rung in which no other one is made of it,
            so that it has its chance. While the incident's last plan is of this rung the run
            is watched on; else the rung is passed over. Not where the run must act.
        where_possible: pass the rung over in a loop that cannot carry it out. Without, such
            a loop is refused before it starts.
    """

    actions: tuple[Order, ...]
    tries: int = 1
    further_back: bool = False
    cooldown_steps: int = 0
    where_possible: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its actions."""
        return tuple(order.action for order in self.actions)

    @property
    def goes_back(self) -> bool:
        """Whether it goes back to a snapshot."""
        return "rollback" in self.names


def rung(*actions: Order | str, **settings: Any) -> Rung:
    """A rung of actions, each by name or with its settings.

    >>> rung("quarantine", "rollback", tries=4).names
    ('quarantine', 'rollback')
    """
    orders = (Order(action=one) if isinstance(one, str) else one for one in actions)
    return Rung(actions=tuple(orders), **settings)


def order(action: str, **settings: Any) -> Order:
    """An action with its settings.

    >>> order("tighten_clip", max_norm=0.3).settings["max_norm"]
    0.3
    """
    return Order(action=action, settings=settings)


# A reset moment makes the first updates as large as the rate allows on every weight (Adam's
# |m|/sqrt(v) is 1 after one gradient); SPAM warms the rate up over 150 steps after each reset.
_WARM_UP: Final = order("scale_lr", factor=0.5, hold_steps=50, ramp_steps=150)
# No look-ahead where the data has had its tries: only what was consumed is set aside.
_CONSUMED: Final = order("quarantine", lookahead=0.0)

RUNGS: Final[Mapping[str, Rung]] = MappingProxyType(
    {
        "watch": rung(),
        "skip": rung("skip_update"),
        "rollback": rung("quarantine", "rollback", tries=4),
        "rollback_further": rung(
            "quarantine",
            order("scale_lr", hold_steps=500, ramp_steps=500),
            "rollback",
            tries=4,
            further_back=True,
        ),
        "cap_lr": rung(
            "quarantine",
            order("cap_lr", hold_steps=1000, ramp_steps=1000),
            "rollback",
        ),
        "lower_lr": rung(
            "quarantine",
            order("scale_lr", hold_steps=1000, ramp_steps=1000),
            "rollback",
            tries=3,
        ),
        "tighten_clip": rung(
            _CONSUMED,
            order("tighten_clip", max_norm=0.3, hold_steps=500, ramp_steps=500),
            "rollback",
            where_possible=True,
        ),
        "reset_moments": rung(
            _CONSUMED,
            _WARM_UP,
            "reset_moments",
            "rollback",
            cooldown_steps=200,
            where_possible=True,
        ),
        "raise_epsilon": rung(
            _CONSUMED,
            order("raise_epsilon", factor=10.0, hold_steps=500),
            "rollback",
            where_possible=True,
        ),
        "lower_beta2": rung(
            _CONSUMED,
            order("lower_beta2", value=0.95, hold_steps=500),
            "rollback",
            where_possible=True,
        ),
        "shrink_embeddings": rung(
            _CONSUMED,
            order("shrink_embedding_gradients", factor=0.1, hold_steps=500, ramp_steps=500),
            "rollback",
            where_possible=True,
        ),
        "perturb_order": rung(_CONSUMED, "perturb_order", "rollback", where_possible=True),
        "perturb_weights": rung(_CONSUMED, "perturb_weights", "rollback", where_possible=True),
        "pause": rung("pause", where_possible=True),
        "halt": rung("halt"),
    }
)
"""Every rung that is known without configuration.

`tighten_clip` to 0.3: OPT-175B's clip after its restarts, from 1.0. `lower_beta2` to 0.95:
OPT-175B again, from 0.98. `shrink_embeddings` to 0.1: GLM-130B. `raise_epsilon` tenfold, how long
rates and clips hold (500, 1,000 steps, and as many to take them back) and how often rungs are
tried: our choice. Four and four tries with data set aside double its window seven times."""

LADDER: Final = (
    "watch",
    "skip",
    "rollback",
    "rollback_further",
    "tighten_clip",
    "reset_moments",
    "raise_epsilon",
    "lower_beta2",
    "perturb_order",
    "perturb_weights",
    "halt",
)
"""The ladder without configuration. `pause` is not in it: it holds the machine until someone
comes. Who is on call puts it before `halt`."""


def check_rung(path: str, one: Rung) -> None:
    """Refuse a rung that cannot be carried out.

    Raises:
        ConfigError: its settings contradict each other; names the place below `path`.
    """
    if one.tries < 1:
        raise ConfigError(f"{path}.tries is {one.tries}; it must be at least 1")
    if one.cooldown_steps < 0:
        raise ConfigError(f"{path}.cooldown_steps is {one.cooldown_steps}; it must be 0 or more")
    names = one.names
    where = f"{path}.actions"
    if not names:
        raise ConfigError(f"{where} is empty; only the rung {WATCH!r} may do nothing")
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ConfigError(f"{where} orders {twice[0]!r} twice; a rung orders an action once")
    for alone in (HALT, "skip_update"):
        if alone in names and len(names) > 1:
            raise ConfigError(f"{where} orders {alone!r} and more; it must stand alone")
    if PAUSE in names[:-1]:
        raise ConfigError(f"{where}: 'pause' must come last; all else is done before one waits")
    if one.goes_back:
        back = names.index("rollback")
        if "quarantine" in names[back:]:
            raise ConfigError(
                f"{where}: 'quarantine' must come before 'rollback', so that no crash in between "
                "trains its window again"
            )
    elif "quarantine" in names:
        raise ConfigError(f"{where} has 'quarantine' without 'rollback'; what has trained stays in")
    elif one.further_back:
        raise ConfigError(f"{path}.further_back needs 'rollback' among the actions")


def check_ladder(path: str, ladder: Sequence[str], rungs: Mapping[str, Rung]) -> None:
    """Refuse a ladder that does not end well.

    Raises:
        ConfigError: a rung is unknown, stands twice or in a place that is not its own, or the
            ladder does not end by handing over.
    """
    for place, name in enumerate(ladder):
        where = f"{path}[{place}]"
        if name not in rungs:
            near = did_you_mean(name, rungs) or "; it must be one of " + ", ".join(rungs)
            raise ConfigError(f"{where} is {name!r:.80}{near}")
        if name in ladder[:place]:
            raise ConfigError(f"{where} is {name!r}, which stands in the ladder already")
        if name == WATCH and place:
            raise ConfigError(f"{where} is {WATCH!r}; it can only come first")
        if HALT in rungs[name].names and place + 1 < len(ladder):
            raise ConfigError(
                f"{where} halts the run, so that {ladder[place + 1]!r} is not reached"
            )
    if not ladder or HALT not in rungs[ladder[-1]].names:
        last = f"ends in {ladder[-1]!r}" if ladder else "is empty"
        raise ConfigError(f"{path} {last}; it must end in 'halt', for when nothing else helps")
