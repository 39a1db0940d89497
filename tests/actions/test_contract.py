"""What every action keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
import json
from typing import Any, get_type_hints

import pytest

from foreshock.catalog import make, members
from foreshock.core.action import Action, ActionCall, Capability
from foreshock.core.policy import Policy

ACTIONS = members("actions")
every = pytest.mark.parametrize("name", ACTIONS)
SAMPLES = {int: 3, float: 0.5, str: "why", bool: True}

NEEDED_BY = {
    "limit_gate": {Capability.SKIP_UPDATE},
    "rollback": {Capability.REWIND_STATE, Capability.REWIND_DATA},
    "quarantine": {Capability.QUARANTINE_DATA},
    "scale_lr": {Capability.SCALE_LR},
    "halt": {Capability.HALT},
}


class FakeControl:
    """A run that writes down what it is asked for, and what that takes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.used: set[Capability] = set()

    capabilities = frozenset(Capability)

    def _note(self, method: str, *arguments: Any) -> str:
        self.calls.append((method, arguments))
        self.used |= NEEDED_BY[method]
        return f"{method} was done"

    def limit_gate(self, limit: float, first_step: int, last_step: int) -> str:
        return self._note("limit_gate", limit, first_step, last_step)

    def rollback(self, snapshot_id: str, step: int) -> str:
        return self._note("rollback", snapshot_id, step)

    def quarantine(self, start: int, stop: int, reason: str) -> str:
        return self._note("quarantine", start, stop, reason)

    def scale_lr(self, factor: float, first_step: int) -> str:
        return self._note("scale_lr", factor, first_step)

    def halt(self, note: str) -> str:
        return self._note("halt", note)


def arguments_of(kind: type[Action]) -> dict[str, Any]:
    """One different value for each argument."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for place, field in enumerate(dataclasses.fields(kind)):  # type: ignore[arg-type]
        sample = SAMPLES[hints[field.name]]
        found[field.name] = f"{sample} {place}" if isinstance(sample, str) else sample + place
    return found


@every
def test_it_is_a_frozen_command_with_plain_arguments(name: str) -> None:
    kind = ACTIONS[name]
    assert dataclasses.is_dataclass(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))
    arguments = arguments_of(kind)
    call = ActionCall(name=name, arguments=arguments)
    told = json.loads(json.dumps(call.to_json(), allow_nan=False))
    assert ActionCall.from_json(told) == call
    action = make("actions", name, **told["arguments"])
    assert dataclasses.asdict(action) == arguments
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(action, next(iter(arguments)), None)
    doc = inspect.getdoc(kind) or ""
    assert all(f"{argument}:" in doc for argument in arguments)


@every
def test_it_uses_what_it_declares_and_nothing_else(name: str) -> None:
    kind = ACTIONS[name]
    control, arguments = FakeControl(), arguments_of(kind)
    assert kind(**arguments).apply(control) == f"{control.calls[0][0]} was done"
    assert len(control.calls) == 1
    assert control.used == set(kind.needs)
    assert sorted(map(repr, control.calls[0][1])) == sorted(map(repr, arguments.values()))


@every
def test_arguments_reach_the_run_in_their_own_places(name: str) -> None:
    kind, control = ACTIONS[name], FakeControl()
    arguments = arguments_of(kind)
    kind(**arguments).apply(control)
    method, given = control.calls[0]
    parameters = list(inspect.signature(getattr(FakeControl, method)).parameters)[1:]
    assert dict(zip(parameters, given, strict=True)) == arguments


def test_the_policy_orders_only_actions_that_exist() -> None:
    assert set(ACTIONS) >= Policy().actions
