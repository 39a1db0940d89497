"""What holds at a step, rebuilt from records."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from foreshock.core.errors import ConfigError
from foreshock.core.override import (
    AS_BUILT,
    KINDS,
    ClipLimit,
    EmbeddingFactor,
    GateLimit,
    LoweredBeta2,
    LRCap,
    LRFactor,
    MomentReset,
    Override,
    RaisedEpsilon,
    Tuning,
    WeightNoise,
)
from foreshock.overrides import Overrides

EXAMPLES: dict[str, Override] = {
    "gate_limited": GateLimit(limit=2.5, first_step=3, last_step=9),
    "lr_scaled": LRFactor(factor=0.1, first_step=3, hold_steps=4, ramp_steps=5),
    "lr_capped": LRCap(max_lr=2e-3, first_step=3, hold_steps=4, ramp_steps=5),
    "clip_tightened": ClipLimit(max_norm=0.3, first_step=3, hold_steps=4, ramp_steps=5),
    "epsilon_raised": RaisedEpsilon(factor=10.0, least=1e-6, first_step=3, hold_steps=4),
    "beta2_lowered": LoweredBeta2(value=0.9, first_step=3, hold_steps=4),
    "embedding_gradients_shrunk": EmbeddingFactor(factor=0.1, first_step=3, hold_steps=4),
    "moments_reset": MomentReset(first_step=3, groups=("blocks.1", "head"), restart_count=False),
    "weights_perturbed": WeightNoise(relative_std=1e-3, seed=(1 << 53) - 1, first_step=3),
}


def holding(*overrides: Override) -> Overrides:
    found = Overrides()
    for number, one in enumerate(overrides):
        found.add_record({"kind": one.kind, "key": f"plan1/{number}", **one.to_json()})
    return found


def slow_weight(step: int, first: int, hold: int | None, ramp: int) -> float:
    """Step by step: 1 while it holds, then equal parts less until nothing is left."""
    weight = 0.0
    for now in range(step + 1):
        if now == first:
            weight = 1.0
        elif hold is not None and now >= first + hold:
            weight = max(0.0, weight - (1.0 / ramp if ramp else 1.0))
    return weight


@pytest.mark.parametrize("ramp", [0, 1, 2, 7])
@pytest.mark.parametrize("hold", [None, 1, 5])
def test_an_override_holds_and_is_taken_back(hold: int | None, ramp: int) -> None:
    one = LRFactor(factor=0.2, first_step=4, hold_steps=hold, ramp_steps=ramp)
    overrides = holding(one)
    for step in range(25):
        weight = slow_weight(step, 4, hold, ramp)
        assert one.weight(step) == pytest.approx(weight, abs=1e-12)
        assert overrides.lr_factor(step) == pytest.approx(1 + weight * (0.2 - 1), abs=1e-12)
    assert overrides.lr_factor(4) == 0.2  # to the bit, as 1 + (0.2 - 1) is not
    if hold is not None:
        assert overrides.lr_factor(4 + hold + max(ramp, 1) - 1) == 1.0


def test_rates_multiply_and_all_else_takes_the_strictest() -> None:
    overrides = holding(
        LRFactor(factor=0.5, first_step=2),
        LRFactor(factor=0.5, first_step=4),
        LRCap(max_lr=0.3, first_step=2, hold_steps=2),
        LRCap(max_lr=0.1, first_step=3, hold_steps=2),
        GateLimit(limit=3.0, first_step=2, last_step=4),
        GateLimit(limit=2.0, first_step=4, last_step=5),
        ClipLimit(max_norm=0.5, first_step=2, hold_steps=2),
        ClipLimit(max_norm=0.3, first_step=3, hold_steps=2),
        RaisedEpsilon(factor=10.0, first_step=2, hold_steps=2),
        RaisedEpsilon(least=1e-4, first_step=3, hold_steps=2),
        LoweredBeta2(value=0.95, first_step=2, hold_steps=2),
        LoweredBeta2(value=0.9, first_step=3, hold_steps=2),
        EmbeddingFactor(factor=0.5, first_step=2, hold_steps=2),
        EmbeddingFactor(factor=0.1, first_step=3, hold_steps=2),
    )
    steps = range(1, 7)
    assert [overrides.lr_factor(step) for step in steps] == [1, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert [overrides.gate_limit(step) for step in steps] == [math.inf, 3, 3, 2, 2, math.inf]
    tunings = [overrides.tuning(step) for step in steps]
    assert [one.lr(1.0) for one in tunings] == [1.0, 0.3, 0.1, 0.1, 1.0, 1.0]
    assert [one.lr(0.2) for one in tunings] == [0.2, 0.2, 0.1, 0.1, 0.2, 0.2]
    assert [one.max_norm(1.0) for one in tunings] == [1.0, 0.5, 0.3, 0.3, 1.0, 1.0]
    assert [one.max_norm(None) for one in tunings] == [None, 0.5, 0.3, 0.3, None, None]
    assert [one.max_norm(0.4) for one in tunings] == [0.4, 0.4, 0.3, 0.3, 0.4, 0.4]
    assert [one.eps(1e-8) for one in tunings] == [1e-8, 1e-7, 1e-4, 1e-4, 1e-8, 1e-8]
    assert [one.beta2_most for one in tunings] == [1.0, 0.95, 0.9, 0.9, 1.0, 1.0]
    assert [one.embedding_factor for one in tunings] == [1.0, 0.5, 0.1, 0.1, 1.0, 1.0]
    assert tunings[0] == tunings[-1] == AS_BUILT


def test_nothing_is_raised_below_or_lowered_above_the_loops_own() -> None:
    tuning = Tuning(clips=((0.3, 1.0),), eps_least=1e-6, beta2_most=0.95)
    assert tuning.max_norm(0.1) == 0.1
    assert tuning.eps(1e-3) == 1e-3


@pytest.mark.parametrize("own", [None, 1.0, 0.31])
def test_a_clip_goes_back_in_equal_parts_of_its_inverse(own: float | None) -> None:
    overrides = holding(ClipLimit(max_norm=0.3, first_step=1, hold_steps=1, ramp_steps=4))
    found = [overrides.tuning(step).max_norm(own) for step in range(6)]
    assert found[0] == found[5] == own
    assert found[1] == 0.3
    inverses = [1 / one if one is not None else 0.0 for one in found[1:]]
    parts = [before - after for before, after in pairwise(inverses)]
    assert parts == pytest.approx([parts[0]] * 4)


@pytest.mark.parametrize("own", [0.05, 0.1, 1.0, 23.0])
def test_what_a_cap_held_back_comes_back_in_equal_parts(own: float) -> None:
    overrides = holding(LRCap(max_lr=0.1, first_step=1, hold_steps=1, ramp_steps=4))
    found = [overrides.tuning(step).lr(own) for step in range(6)]
    assert found[0] == found[5] == own  # to the bit
    assert found[1] == min(own, 0.1)
    parts = [after - before for before, after in pairwise(found[1:])]
    assert parts == pytest.approx([max(own - 0.1, 0.0) / 4] * 4, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_gives_the_override_back(kind: str) -> None:
    one = EXAMPLES[kind]
    record = json.loads(json.dumps({"kind": kind, "key": "plan1/0", "time": 1.0, **one.to_json()}))
    assert KINDS[kind].from_json(record) == one
    overrides = holding(one)
    assert overrides.knows("plan1/0", one)
    assert not overrides.knows("plan1/1", one)
    overrides.add_record(record)
    assert len(overrides) == 1


def test_records_from_before_a_way_back_was_known_are_read() -> None:
    record = {"first_step": 3, "factor": 0.5}
    assert LRFactor.from_json(record) == LRFactor(factor=0.5, first_step=3)


def test_edits_stand_at_their_step_in_the_order_they_came() -> None:
    reset, noise = MomentReset(first_step=3), WeightNoise(first_step=3, relative_std=0.1, seed=1)
    overrides = holding(reset, noise, MomentReset(first_step=4))
    assert list(overrides.edits(3).values()) == [reset, noise]
    assert overrides.edits(2) == {}
    assert overrides.tuning(3) == AS_BUILT


def test_what_is_in_force_is_told() -> None:
    overrides = holding(*EXAMPLES.values())
    told = " / ".join(overrides.in_force(4))
    for word in ("2.5", "0.1", "at most 0.002", "0.3", "eps", "0.9", "embeddings"):
        assert word in told
    assert overrides.in_force(2) == []


BAD: list[tuple[str, dict[str, Any]]] = [
    ("lr_scaled", {"factor": 0.0}),
    ("lr_scaled", {"factor": 1.5}),
    ("lr_scaled", {"factor": "NaN"}),
    ("lr_scaled", {"factor": None}),
    ("lr_scaled", {"hold_steps": 0}),
    ("lr_scaled", {"hold_steps": 1.5}),
    ("lr_scaled", {"ramp_steps": -1}),
    ("lr_scaled", {"ramp_steps": True}),
    ("lr_scaled", {"first_step": -1}),
    ("lr_scaled", {"first_step": 1 << 60}),
    ("lr_capped", {"max_lr": 0}),
    ("lr_capped", {"max_lr": "Infinity"}),
    ("lr_capped", {"max_lr": "NaN"}),
    ("lr_capped", {"hold_steps": 0}),
    ("gate_limited", {"limit": "Infinity"}),
    ("clip_tightened", {"max_norm": 0}),
    ("clip_tightened", {"max_norm": "Infinity"}),
    ("epsilon_raised", {"factor": 0.5}),
    ("epsilon_raised", {"factor": 1.0, "least": 0.0}),
    ("epsilon_raised", {"least": "NaN"}),
    ("beta2_lowered", {"value": 1.0}),
    ("embedding_gradients_shrunk", {"factor": -0.1}),
    ("moments_reset", {"first_step": 0}),
    ("moments_reset", {"groups": "blocks"}),
    ("moments_reset", {"groups": [1]}),
    ("moments_reset", {"restart_count": 1}),
    ("weights_perturbed", {"relative_std": 1.0}),
    ("weights_perturbed", {"seed": -1}),
    ("weights_perturbed", {"seed": "1"}),
]


@pytest.mark.parametrize(("kind", "changed"), BAD)
def test_what_no_run_writes_is_refused(kind: str, changed: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        KINDS[kind].from_json({**EXAMPLES[kind].to_json(), **changed})


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_field_is_refused(kind: str) -> None:
    needed = {**EXAMPLES[kind].to_json()}
    del needed["first_step"]
    with pytest.raises(KeyError):
        KINDS[kind].from_json(needed)
