"""The policy as a table, and what it needs of a loop: checked before the run starts.

[policy]
ladder = ["watch", "skip", "rollback", "rollback_further", "pause", "halt"]
max_rollbacks = 20

[policy.rungs.rollback_further]
tries = 2
actions = ["quarantine", { action = "scale_lr", factor = 0.5, hold_steps = 200 }, "rollback"]

[policy.preferences]
lr_too_high = ["skip", "rollback_further", "rollback_further"]
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foreshock.catalog import members
from foreshock.core.action import Capability
from foreshock.core.errors import CatalogError, ConfigError
from foreshock.core.ladder import RUNGS, Order, Rung
from foreshock.core.nearest import did_you_mean
from foreshock.core.planning import OWN_SETTINGS, WORKED_OUT
from foreshock.core.policy import Policy
from foreshock.core.preferences import PREFERENCES
from foreshock.core.settings import as_value, read_settings, unknown

_NESTED: Final = ("rungs", "preferences")

_STAND_INS: Final[Mapping[str, Any]] = {
    "first_step": 1,
    "last_step": 1,
    "limit": 1.0,
    "max_lr": 1.0,
    "note": "",
    "position": 0,
    "reason": "",
    "snapshot_id": "",
    "start": 0,
    "step": 0,
    "stop": 1,
    "factor": 0.5,
}
"""Arguments that are worked out later, so that an action can be built to see that it can."""


def read_policy(table: object, path: str = "policy") -> Policy:
    """A policy from its table. Rungs and preferences that are not named stay as they are.

    Raises:
        ConfigError: a setting is unknown, of the wrong type, or goes with no other; it names
            the place in the file.
    """
    settings = read_settings(path, Policy, table)
    rungs = dict(RUNGS)
    given_tables: Mapping[str, Any] = table if isinstance(table, dict) else {}
    settings = {key: one for key, one in settings.items() if key not in _NESTED}
    for name, given in _tables(f"{path}.rungs", given_tables.get("rungs", {})):
        rungs[name] = _rung(f"{path}.rungs.{name}", given, rungs.get(name))
    preferences = dict(PREFERENCES)
    known = members("causes")
    for cause, named in _tables(f"{path}.preferences", given_tables.get("preferences", {})):
        where = f"{path}.preferences.{cause}"
        if cause not in known:
            near = did_you_mean(cause, known) or "; there are " + ", ".join(known)
            raise ConfigError(f"{where}: there is no cause {cause!r:.80}{near}")
        if not isinstance(named, list | tuple) or not all(isinstance(one, str) for one in named):
            raise ConfigError(f"{where} is {named!r:.80}; it must be a list of rungs")
        preferences[cause] = tuple(named)
    try:
        policy = Policy(**settings, rungs=rungs, preferences=preferences)
    except ConfigError as error:
        raise ConfigError(path + str(error).removeprefix("Policy")) from error
    check_actions(policy, path)
    return policy


def check_actions(policy: Policy, path: str = "Policy") -> None:
    """Refuse a policy whose rungs order what no action is, or with settings that it lacks.

    Raises:
        ConfigError: likewise; it names the rung and the action.
    """
    for name, rung in policy.rungs.items():
        for place, order in enumerate(rung.actions):
            _check_order(f"{path}.rungs.{name}.actions[{place}]", order, rung)


def capabilities_needed(policy: Policy) -> frozenset[Capability]:
    """What a loop must be able to do for a policy; what it passes over elsewhere is not in it.

    Raises:
        ConfigError: it orders an action that does not exist.
    """
    needed: frozenset[Capability] = frozenset()
    known = members("actions")
    for name in policy.actions:
        if name not in known:
            raise ConfigError(f"the policy orders {name!r}, which is no action; see Policy.rungs")
        needed |= known[name].needs
    return needed


def fitted(policy: Policy, capabilities: frozenset[Capability]) -> Policy:
    """The policy without those `where_possible` rungs that a loop cannot carry out."""
    known = members("actions")
    beyond = {
        name
        for name, rung in policy.rungs.items()
        if rung.where_possible
        and any(one not in known or known[one].needs - capabilities for one in rung.names)
    }
    return policy.without(frozenset(beyond)) if beyond else policy


def _tables(path: str, table: object) -> Sequence[tuple[str, Any]]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path} is {table!r:.80}; it must be a table")
    return list(table.items())


def _rung(path: str, table: object, before: Rung | None) -> Rung:
    """A rung from its table; one that is known already is changed where it says so."""
    settings = read_settings(path, Rung, table)
    if "actions" in settings:
        settings["actions"] = _orders(f"{path}.actions", settings["actions"])
    elif before is None:
        raise ConfigError(f"{path} is a new rung, and has no actions")
    if before is None:
        return Rung(**settings)
    if "actions" in settings:  # asked for by name: a loop that cannot do it is refused
        settings.setdefault("where_possible", False)
    return dataclasses.replace(before, **settings)


def _orders(path: str, listed: object) -> tuple[Order, ...]:
    if not isinstance(listed, list | tuple):
        raise ConfigError(f"{path} is {listed!r:.80}; it must be a list of actions")
    found: list[Order] = []
    for place, one in enumerate(listed):
        if isinstance(one, str):
            found.append(Order(action=one))
        elif isinstance(one, dict) and isinstance(one.get("action"), str):
            settings = {key: as_value(value) for key, value in one.items() if key != "action"}
            found.append(Order(action=one["action"], settings=settings))
        else:
            raise ConfigError(
                f"{path}[{place}] is {one!r:.80}; it must be the name of an action, or a table "
                "with `action` and its settings"
            )
    return tuple(found)


def _check_order(path: str, order: Order, rung: Rung) -> None:
    known = members("actions")
    if order.action not in known:
        near = did_you_mean(order.action, known) or "; there are " + ", ".join(known)
        raise ConfigError(f"{path}: there is no action {order.action!r:.80}{near}")
    kind = known[order.action]
    worked_out = WORKED_OUT.get(order.action, frozenset())
    own = OWN_SETTINGS.get(order.action, frozenset())
    fields = [item.name for item in dataclasses.fields(kind) if item.init]
    allowed = sorted((set(fields) - worked_out) | own)
    for name in order.settings:
        if name in worked_out:
            raise ConfigError(f"{path}: {name!r} is worked out when the plan is made; leave it out")
        if name not in allowed:
            raise unknown(f"{path} ({order.action})", name, allowed)
    _check_own(path, order)
    given = {name: value for name, value in order.settings.items() if name not in own}
    read_settings(f"{path} ({order.action})", kind, given)
    needed = [item.name for item in dataclasses.fields(kind) if item.name in _STAND_INS]
    stand_ins = {
        name: _STAND_INS[name] for name in needed if name in worked_out or name == "factor"
    }
    try:
        kind(**{**stand_ins, **given})
    except (CatalogError, ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} ({order.action}): {error!s:.200}") from error


def _check_own(path: str, order: Order) -> None:
    if order.action == "quarantine":
        value = order.settings.get("lookahead", 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ConfigError(f"{path}: lookahead is {value!r:.80}; it must be a number from 0 on")
    if order.action == "skip_update":
        value = order.settings.get("hold_steps", 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path}: hold_steps is {value!r:.80}; it must be at least 1 step")
