"""The verdict on each kind of trouble, with other weights, data order and damage each time."""

from pathlib import Path

import pytest

from tests.experiments.runs import broken_run, outcome_of, scene_at

VERDICTS: dict[str, dict[str, str]] = {
    "bad_batch": {
        "earlier_state": "comes_back",
        "clean_control": "stays_away",
        "other_batch": "stays_away",
        "left_out": "stays_away",
    },
    "batch_and_state": {
        "earlier_state": "stays_away",
        "clean_control": "stays_away",
        "replay": "comes_back",
        "other_batch": "stays_away",
        "left_out": "stays_away",
    },
    "moments": {
        "earlier_state": "stays_away",
        "clean_control": "stays_away",
        "replay": "stays_away",
        "inspection": "moments_damaged",
    },
    "weight": {
        "earlier_state": "stays_away",
        "clean_control": "stays_away",
        "replay": "stays_away",
        "inspection": "weights_damaged",
    },
    "numeric_range": {
        "earlier_state": "stays_away",
        "replay": "comes_back",
        "other_batch": "comes_back",
        "left_out": "comes_back",
        "fp32_forward": "cured",
    },
    "chance": {"twice": "differs", "replay": "comes_back"},
}
SEEDS = 20
SLOW = 6
SAME_BITS = {kind: "same_bits" for kind in VERDICTS if kind != "chance"}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed < SLOW else pytest.mark.proof)
        for seed in range(SEEDS)
    ],
)
@pytest.mark.parametrize("kind", VERDICTS)
def test_the_verdict_is_right(kind: str, seed: int, tmp_path: Path) -> None:
    run = broken_run(tmp_path / "run", kind, 10 + seed)
    wanted = VERDICTS[kind]
    if kind in SAME_BITS and seed == 0:
        wanted = wanted | {"twice": SAME_BITS[kind]}
    with scene_at(run, kind, 10 + seed) as scene:
        assert {name: outcome_of(scene, name).outcome for name in wanted} == wanted
