"""Real runs that broke for a known reason: what each experiment must say of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from foreshock.core.experiment import Result
from foreshock.scene import Scene
from foreshock.settling import experiments_named
from foreshock.trial import NoResultError
from tests.experiments.runs import broken_run, files_of, outcome_of, scene_at

Run = Callable[[str], Path]

VERDICTS: dict[str, dict[str, str]] = {
    "bad_batch": {
        "earlier_state": "comes_back",
        "replay": "comes_back",
        "other_batch": "stays_away",
        "left_out": "stays_away",
        "reseeded": "comes_back",
        "inspection": "sound",
        "twice": "same_bits",
        "other_split": "same",
        "eager": "same",
        "fp32_forward": "not_cured",
        "fp64_loss": "not_cured",
        "lower_rate": "not_cured",
        "fresh_moments": "not_cured",
        "repaired_moments": "not_cured",
    },
    "batch_and_state": {
        "earlier_state": "stays_away",
        "replay": "comes_back",
        "other_batch": "stays_away",
        "left_out": "stays_away",
        "inspection": "sound",
        "fresh_moments": "not_cured",
    },
    "numeric_range": {
        "earlier_state": "stays_away",
        "replay": "comes_back",
        "other_batch": "comes_back",
        "left_out": "comes_back",
        "reseeded": "comes_back",
        "bisection": "none_needed",
        "fp32_forward": "cured",
        "fp64_loss": "not_cured",
        "lower_rate": "not_cured",
        "twice": "same_bits",
        "inspection": "sound",
    },
    "chance": {"twice": "differs", "earlier_state": "comes_back", "replay": "comes_back"},
    "moments": {
        "earlier_state": "stays_away",
        "replay": "stays_away",
        "inspection": "moments_damaged",
        "twice": "same_bits",
    },
    "weight": {
        "earlier_state": "stays_away",
        "replay": "stays_away",
        "inspection": "weights_damaged",
    },
}


def told(scene: Scene, kind: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in VERDICTS[kind]:
        result: Result = outcome_of(scene, name)
        assert result.outcome in result.outcomes
        assert result.statement
        assert result.to_json() == Result.from_json(result.to_json()).to_json()
        found[name] = result.outcome
    return found


FAST = ("bad_batch", "batch_and_state", "numeric_range", "moments")


@pytest.mark.parametrize(
    "kind", [one if one in FAST else pytest.param(one, marks=pytest.mark.slow) for one in VERDICTS]
)
def test_each_experiment_says_what_is_so_and_the_run_is_left_alone(kind: str, run_of: Run) -> None:
    run = run_of(kind)
    before = files_of(run)
    with scene_at(run, kind) as scene:
        assert told(scene, kind) == VERDICTS[kind]
        if kind == "chance":
            assert scene.exact is False
            assert scene.is_close is True
        else:
            assert scene.exact is True
    assert files_of(run) == before


@pytest.mark.slow
def test_a_few_bad_samples_are_told_from_many(run_of: Run) -> None:
    with scene_at(run_of("bad_batch"), "bad_batch") as scene:
        result = outcome_of(scene, "bisection", budget=120)
        assert result.figures["undecided"] == 0
        assert result.outcome == "many_samples"
        assert "p:" in result.statement
        assert "a:" not in result.statement


def test_where_a_replay_does_not_have_the_trouble_nothing_is_guessed(run_of: Run) -> None:
    """The replayed state is healthy: that other data does it no harm says nothing of the run's."""
    names = ["other_batch", "left_out", "bisection", "fp32_forward", "lower_rate"]
    names += ["fresh_moments", "repaired_moments", "reseeded", "fp64_loss"]
    with scene_at(run_of("moments"), "moments") as scene:
        for one in experiments_named(names):
            with pytest.raises(NoResultError, match="no replay"):
                one.run(scene)
            assert "no replay" in one.why_not(scene)


def test_what_a_model_has_no_part_for_is_refused(run_of: Run) -> None:
    with scene_at(run_of("bad_batch"), "bad_batch") as scene:
        (one,) = experiments_named(["fp64_attention"])
        assert "no attention" in one.why_not(scene)
        scene.older = None
        (one,) = experiments_named(["earlier_state"])
        assert "20 steps" in one.why_not(scene)


def test_a_replay_that_is_not_the_run_and_shows_nothing_tells_nothing(run_of: Run) -> None:
    with scene_at(run_of("moments"), "moments") as scene:
        scene.replay.overrides.add_record(
            {"kind": "lr_scaled", "key": "x", "factor": 0.3, "first_step": 0}
        )
        with pytest.raises(NoResultError, match="not those of the run"):
            outcome_of(scene, "replay")
        with pytest.raises(NoResultError, match="not those of the run"):
            outcome_of(scene, "inspection")


@pytest.mark.slow
@pytest.mark.parametrize("kind", VERDICTS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_is_said_with_other_weights(kind: str, seed: int, tmp_path: Path) -> None:
    run = broken_run(tmp_path / "run", kind, seed)
    with scene_at(run, kind, seed) as scene:
        assert told(scene, kind) == VERDICTS[kind]
