"""What every action keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
import json
import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest

from foreshock.catalog import make, members
from foreshock.core.action import Action, ActionCall, Capability
from foreshock.core.errors import ConfigError
from foreshock.core.policy import Policy

ACTIONS = members("actions")
every = pytest.mark.parametrize("name", ACTIONS)
SAMPLES: dict[Any, Any] = {
    int: 3,
    int | None: 4,
    float: 0.5,
    str: "why",
    bool: False,
    Sequence[str]: ["blocks.1", "head"],
}
WITHIN = {"raise_epsilon": {"factor": 2.5}}
"""Values for arguments whose range the samples miss."""

NEEDED_BY = {
    "limit_gate": {Capability.SKIP_UPDATE},
    "rollback": {Capability.REWIND_STATE, Capability.REWIND_DATA},
    "quarantine": {Capability.QUARANTINE_DATA},
    "scale_lr": {Capability.SCALE_LR},
    "cap_lr": {Capability.SCALE_LR},
    "tighten_clip": {Capability.TIGHTEN_CLIP},
    "raise_epsilon": {Capability.RAISE_EPSILON},
    "lower_beta2": {Capability.LOWER_BETA2},
    "shrink_embedding_gradients": {Capability.SHRINK_EMBEDDING_GRADIENTS},
    "reset_moments": {Capability.RESET_MOMENTS},
    "perturb_weights": {Capability.PERTURB_WEIGHTS},
    "perturb_order": {Capability.REORDER_DATA},
    "pause": {Capability.PAUSE},
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

    def scale_lr(
        self, factor: float, first_step: int, hold_steps: int | None = None, ramp_steps: int = 0
    ) -> str:
        return self._note("scale_lr", factor, first_step, hold_steps, ramp_steps)

    def cap_lr(
        self, max_lr: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        return self._note("cap_lr", max_lr, first_step, hold_steps, ramp_steps)

    def tighten_clip(
        self, max_norm: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        return self._note("tighten_clip", max_norm, first_step, hold_steps, ramp_steps)

    def raise_epsilon(
        self, factor: float, least: float, first_step: int, hold_steps: int | None
    ) -> str:
        return self._note("raise_epsilon", factor, least, first_step, hold_steps)

    def lower_beta2(self, value: float, first_step: int, hold_steps: int | None) -> str:
        return self._note("lower_beta2", value, first_step, hold_steps)

    def shrink_embedding_gradients(
        self, factor: float, first_step: int, hold_steps: int | None, ramp_steps: int
    ) -> str:
        return self._note("shrink_embedding_gradients", factor, first_step, hold_steps, ramp_steps)

    def reset_moments(self, first_step: int, groups: Sequence[str], restart_count: bool) -> str:
        return self._note("reset_moments", first_step, groups, restart_count)

    def perturb_weights(self, relative_std: float, first_step: int) -> str:
        return self._note("perturb_weights", relative_std, first_step)

    def perturb_order(self, position: int) -> str:
        return self._note("perturb_order", position)

    def pause(self, reason: str, timeout_secs: float) -> str:
        return self._note("pause", reason, timeout_secs)

    def halt(self, note: str) -> str:
        return self._note("halt", note)


def arguments_of(kind: type[Action]) -> dict[str, Any]:
    """One different value for each argument."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for place, field in enumerate(dataclasses.fields(kind)):  # type: ignore[arg-type]
        sample = SAMPLES[hints[field.name]]
        match sample:
            case str():
                found[field.name] = f"{sample} {place}"
            case int() if not isinstance(sample, bool):
                found[field.name] = sample + place
            case float():
                found[field.name] = sample + place / 16
            case _:
                found[field.name] = sample
    return {**found, **WITHIN.get(kind.name, {})}


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


BAD: list[tuple[str, dict[str, Any]]] = [
    ("scale_lr", {"factor": 2.0, "first_step": 1}),
    ("scale_lr", {"factor": 0.5, "first_step": 1, "hold_steps": 0}),
    ("cap_lr", {"max_lr": 0.0, "first_step": 1}),
    ("cap_lr", {"max_lr": math.inf, "first_step": 1}),
    ("cap_lr", {"max_lr": 1e-3, "first_step": 1, "ramp_steps": -1}),
    ("tighten_clip", {"max_norm": 0.0, "first_step": 1}),
    ("tighten_clip", {"first_step": 1, "ramp_steps": -1}),
    ("raise_epsilon", {"first_step": 1}),
    ("raise_epsilon", {"first_step": 1, "factor": math.nan}),
    ("lower_beta2", {"first_step": 1, "value": 1.0}),
    ("shrink_embedding_gradients", {"first_step": 1, "factor": 0.0}),
    ("reset_moments", {"first_step": 0}),
    ("perturb_weights", {"first_step": 1, "relative_std": 1.0}),
    ("perturb_weights", {"first_step": 1, "relative_std": math.nan}),
    ("perturb_order", {"position": -1}),
    ("pause", {"reason": "x", "timeout_secs": -1.0}),
    ("pause", {"reason": "x", "timeout_secs": math.inf}),
]


@pytest.mark.parametrize(("name", "arguments"), BAD)
def test_what_is_out_of_its_range_is_refused_when_it_is_built(
    name: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="it must be"):
        make("actions", name, **arguments)


def test_every_capability_is_one_that_some_action_needs() -> None:
    needed = {one for kind in ACTIONS.values() for one in kind.needs}
    told = {Capability.SKIP_WITHOUT_HOST_WAIT, Capability.QUARANTINE_BY_POSITION}
    assert set(Capability) - needed == told  # what only tells how


def test_the_policy_orders_only_actions_that_exist() -> None:
    assert set(ACTIONS) >= Policy().actions
