"""The policy as a table: as documented, checked before the run, and fitted to the loop."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foreshock.catalog import make, members
from foreshock.core.action import Capability
from foreshock.core.errors import ConfigError
from foreshock.core.ladder import LADDER, RUNGS, order, rung
from foreshock.core.planning import WORKED_OUT
from foreshock.core.policy import Policy
from foreshock.core.preferences import PREFERENCES
from foreshock.policy_tables import capabilities_needed, check_actions, fitted, read_policy
from foreshock.recipes import load
from tests.core.test_policy import GRADIENTS, NOW, blamed
from tests.core.test_policy_ladder import climb

PAGE = (Path(__file__).parents[1] / "docs/policy.md").read_text()
EVERYTHING = frozenset(Capability)


@pytest.fixture
def documented(tmp_path: Path) -> Policy:
    toml = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    path = tmp_path / "recipe.toml"
    path.write_text(toml)
    return load(path).policy


def test_the_documented_policy_is_read_as_it_stands(documented: Policy) -> None:
    assert documented.ladder[-3:] == ("reset_moments", "pause", "halt")
    further = documented.rungs["rollback_further"]
    assert (further.tries, further.further_back) == (2, True)
    assert further.actions[1] == order("scale_lr", factor=0.7, hold_steps=200, ramp_steps=200)
    assert documented.rungs["gentle"].cooldown_steps == 100
    assert documented.preferences["numeric_overflow"] == ("gentle", "rollback")
    assert (
        documented.preferences["optimizer_state_corrupt"] == PREFERENCES["optimizer_state_corrupt"]
    )
    assert not documented.rungs["pause"].where_possible
    plans = climb(documented, NOW)
    assert [plan.rung for plan in plans][-2:] == ["pause", "halt"]


def test_the_page_tells_the_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| ?(\d*) \|$", PAGE, re.MULTILINE)
    ladder = [(name, tries) for name, _, tries in rows if name in RUNGS]
    assert tuple(name for name, _ in ladder) == LADDER
    assert all(not tries or int(tries) == RUNGS[name].tries for name, tries in ladder)
    for name, default in re.findall(r"^\| `(m\w+)` \| .* \| ([\d.]+|no limit) \|$", PAGE, re.M):
        told = None if default == "no limit" else float(default)
        assert getattr(Policy(), name) == told, name
    assert {name for name in PREFERENCES if f"`{name}`" not in PAGE} == set()


def test_an_empty_table_is_the_default() -> None:
    assert read_policy({}) == Policy()


@pytest.mark.parametrize("name", sorted(set(RUNGS) - {"watch"}))
def test_every_known_rung_makes_a_plan_whose_actions_can_be_built(name: str) -> None:
    policy = Policy(ladder=(name, "halt") if name != "halt" else ("halt",), preferences={})
    check_actions(policy)
    now = GRADIENTS if name == "skip" else NOW
    now = replace(now, diagnosis=replace(now.diagnosis, lr_before_jump=1e-3))
    plan = policy.decide(now)
    assert plan is not None
    assert plan.rung == name
    for call in plan.actions:
        assert make("actions", call.name, **call.arguments).name == call.name


def test_what_is_worked_out_are_fields_of_the_actions() -> None:
    assert set(WORKED_OUT) == set(members("actions"))
    for name, arguments in WORKED_OUT.items():
        assert arguments <= set(members("actions")[name].__dataclass_fields__), name


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"confirm": 1}, "policy has no setting 'confirm'; did you mean 'confirm_steps'?"),
        ({"lader": []}, "policy has no setting 'lader'; did you mean 'ladder'?"),
        ({"confirm_steps": "2"}, "policy: confirm_steps is '2'; it must be of type int"),
        ({"max_steps_retrained": 2.5}, "policy: max_steps_retrained is 2.5"),
        ({"max_share_set_aside": True}, "policy: max_share_set_aside is True"),
        ({"confirm_steps": 0}, "policy.confirm_steps is 0; it must be at least 1"),
        ({"ladder": "halt"}, "policy: ladder is 'halt'; it must be a list of names"),
        ({"ladder": ["rollback"]}, "policy.ladder ends in 'rollback'"),
        ({"ladder": ["rollbak", "halt"]}, "policy.ladder[0] is 'rollbak'; did you mean 'rollback'"),
        ({"rungs": []}, "policy.rungs is []; it must be a table"),
        ({"rungs": {"new": {}}}, "policy.rungs.new is a new rung, and has no actions"),
        ({"rungs": {"rollback": 3}}, "policy.rungs.rollback is 3; it must be a table"),
        ({"rungs": {"rollback": {"trys": 3}}}, "policy.rungs.rollback has no setting 'trys'; did"),
        ({"rungs": {"rollback": {"tries": "3"}}}, "policy.rungs.rollback: tries is '3'"),
        ({"rungs": {"rollback": {"tries": 0}}}, "policy.rungs.rollback.tries is 0"),
        ({"rungs": {"rollback": {"actions": "x"}}}, "rollback.actions is 'x'; it must be a list"),
        ({"rungs": {"rollback": {"actions": [3]}}}, "rollback.actions[0] is 3"),
        ({"rungs": {"x": {"actions": ["rolback"]}}}, "x.actions[0]: there is no action 'rolback'; "
         "did you mean 'rollback'?"),
        ({"rungs": {"x": {"actions": [{"action": "scale_lr", "factr": 0.5}, "rollback"]}}},
         "policy.rungs.x.actions[0] (scale_lr) has no setting 'factr'; did you mean 'factor'?"),
        ({"rungs": {"x": {"actions": [{"action": "scale_lr", "first_step": 5}]}}},
         "policy.rungs.x.actions[0]: 'first_step' is worked out"),
        ({"rungs": {"x": {"actions": [{"action": "scale_lr", "factor": "half"}]}}},
         "policy.rungs.x.actions[0] (scale_lr): factor is 'half'"),
        ({"rungs": {"x": {"actions": [{"action": "scale_lr", "factor": 2.0}]}}},
         "policy.rungs.x.actions[0] (scale_lr): "),
        ({"rungs": {"x": {"actions": [{"action": "tighten_clip", "max_norm": -1.0}]}}},
         "policy.rungs.x.actions[0] (tighten_clip): "),
        ({"rungs": {"x": {"actions": [{"action": "quarantine", "lookahead": -1}, "rollback"]}}},
         "lookahead is -1"),
        ({"rungs": {"x": {"actions": [{"action": "skip_update", "hold_steps": 0}]}}},
         "hold_steps is 0"),
        ({"preferences": {"lr_to_high": []}}, "there is no cause 'lr_to_high'; did you mean "
         "'lr_too_high'?"),
        ({"preferences": {"unknown": "halt"}}, "policy.preferences.unknown is 'halt'"),
        ({"preferences": {"unknown": ["halte"]}}, "policy.preferences.unknown[0] is 'halte'; did"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_its_place_in_the_file(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_policy(table)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_policy_needs_of_a_loop() -> None:
    back = {Capability.REWIND_STATE, Capability.REWIND_DATA, Capability.QUARANTINE_DATA}
    can = {Capability.SKIP_UPDATE, Capability.SCALE_LR, Capability.HALT}
    assert capabilities_needed(Policy()) == back | can
    assert capabilities_needed(Policy(watch_only=True)) == frozenset()
    assert capabilities_needed(Policy(can_rollback=False)) == can - {Capability.SCALE_LR}
    mine = read_policy({"rungs": {"tighten_clip": {"actions": ["tighten_clip"]}}})
    assert capabilities_needed(mine) == back | can | {Capability.TIGHTEN_CLIP}
    unknown = Policy(rungs={**RUNGS, "x": rung("dance")}, ladder=("x", "halt"), preferences={})
    with pytest.raises(ConfigError, match="'dance', which is no action"):
        capabilities_needed(unknown)


def test_a_loop_passes_over_what_it_cannot_do_and_only_that() -> None:
    assert fitted(Policy(), EVERYTHING) == Policy()
    poor = EVERYTHING - {Capability.LOWER_BETA2, Capability.RESET_MOMENTS}
    policy = fitted(Policy(), poor)
    assert set(LADDER) - set(policy.ladder) == {"lower_beta2", "reset_moments"}
    assert policy.preferences["optimizer_state_corrupt"] == ("skip", "rollback")
    rungs = [plan.rung for plan in climb(policy, blame_state())]
    assert "reset_moments" not in rungs
    assert "tighten_clip" in rungs
    stubborn = read_policy({"rungs": {"lower_beta2": {"actions": ["lower_beta2", "rollback"]}}})
    assert "lower_beta2" in fitted(stubborn, poor).ladder  # the Guard refuses it


def blame_state() -> Any:
    return replace(NOW, diagnosis=blamed("optimizer_state_corrupt", data=0.1))
