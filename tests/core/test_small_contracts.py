"""Verdict, errors, settings: small values that everything else relies on."""

import dataclasses
import math

import pytest

from foreshock.core import errors
from foreshock.core.errors import ForeshockError, Halted, Stopped
from foreshock.core.program import Loss, Program, Settings
from foreshock.core.verdict import Verdict, gate_reason


@pytest.mark.parametrize(
    ("norm", "limit", "reason"),
    [
        (2.0, 2.0, ""),
        (0.0, 0.0, ""),
        (1e30, math.inf, ""),
        (2.0000001, 2.0, "gradient norm 2 above the gate limit 2"),
        (math.nan, math.inf, "gradient norm is NaN"),
        (math.inf, math.inf, "gradient norm is Infinity"),
        (-math.inf, math.inf, "gradient norm is -Infinity"),
    ],
)
def test_the_gate_commits_what_is_finite_and_at_most_the_limit(
    norm: float, limit: float, reason: str
) -> None:
    assert gate_reason(norm, limit) == reason


def test_a_verdict_is_a_value() -> None:
    verdict = Verdict(step=3, committed=None)
    assert verdict == Verdict(step=3, committed=None, reason="")
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.committed = True  # type: ignore[misc]


def test_one_catch_is_enough_and_halting_has_an_exit_code_of_its_own() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    assert len(classes) > 8
    for one in classes:
        assert issubclass(one, ForeshockError)
        assert one.exit_code == {Halted: 3, Stopped: 75}.get(one, 2)
        assert one.__doc__


def test_settings_hand_out_overrides() -> None:
    settings = Settings(seed=3, overrides={"lr": 0.5, "width": None})
    assert settings.get("lr", 1.0) == 0.5
    assert settings.get("width", 8) is None
    assert settings.get("depth", 2) == 2
    assert Settings().get("lr", 1.0) == 1.0


def test_a_program_needs_four_things_and_shares_nothing_with_the_next() -> None:
    one, two = (Program(model=1, optimizer=2, stream=3, loss=lambda m, b: m) for _ in range(2))
    assert one.track == {}
    assert one.track is not two.track
    assert (one.accumulate, one.precision, one.clip) == (1, "fp32", None)
    assert Loss(total=1.0).terms == {}
    with pytest.raises(TypeError, match="loss"):
        Program(model=1, optimizer=2, stream=3)  # type: ignore[call-arg]
