"""What every experiment must keep, present and future ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from foreshock.catalog import members
from foreshock.core.experiment import Experiment
from foreshock.driver import build
from foreshock.scene_of_run import scene_of
from foreshock.snapshots.codec import digest
from foreshock.snapshots.parts import GlobalRandomPart
from foreshock.trial import NoResultError
from tests.experiments.runs import KINDS, files_of, recipe, settings

NAMES = sorted(members("experiments"))
EXPECTED = {
    "replay": {"comes_back", "stays_away"},
    "earlier_state": {"comes_back", "stays_away"},
    "clean_control": {"comes_back", "stays_away"},
    "other_batch": {"comes_back", "stays_away"},
    "left_out": {"comes_back", "stays_away"},
    "reseeded": {"comes_back", "stays_away"},
    "bisection": {"few_samples", "many_samples", "none_needed"},
    "fp32_forward": {"cured", "not_cured"},
    "fp64_attention": {"cured", "not_cured"},
    "fp64_loss": {"cured", "not_cured"},
    "lower_rate": {"cured", "not_cured"},
    "fresh_moments": {"cured", "not_cured"},
    "repaired_moments": {"cured", "not_cured"},
    "other_split": {"same", "differs"},
    "eager": {"same", "differs"},
    "twice": {"same_bits", "differs"},
    "inspection": {"sound", "moments_damaged", "weights_damaged"},
}


def test_all_are_there() -> None:
    assert {name: set(members("experiments")[name].outcomes) for name in EXPECTED} == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_what_it_says_of_itself(name: str) -> None:
    kind = members("experiments")[name]
    assert issubclass(kind, Experiment)
    assert len(kind.outcomes) >= 2
    assert kind.question.endswith("?")
    assert all(kind.outcomes.values())
    assert 0 < kind.windows < 50


@pytest.mark.parametrize("name", NAMES)
def test_causes_give_probabilities_to_its_outcomes(name: str) -> None:
    for cause in members("causes").values():
        if (likely := cause.outcomes.get(name)) is not None:
            assert set(likely) == set(members("experiments")[name].outcomes), cause.name
            assert sum(likely.values()) == pytest.approx(1)


def test_the_scene_and_the_process_are_left_as_they_were(run_of: Callable[[str], Path]) -> None:
    """Also what the program is made of: weights, moments, generators, modes, hooks, precision."""
    run = run_of("numeric_range")
    files = files_of(run)
    built = build(KINDS["numeric_range"][0], settings())
    outside = digest(GlobalRandomPart().capture())
    with scene_of(run, built, recipe(), incident=1) as scene:
        program = scene.replay.program
        modes = [one.training for one in program.model.modules()]

        def state() -> str:
            parts = ("model", "optimizer", "scheduler", "stream", "random")
            return digest([scene.replay.captured(one) for one in parts])

        for name in NAMES:
            one = members("experiments")[name]()
            if one.why_not(scene):
                continue
            scene.look(scene.before)
            before = state()
            try:
                result = one.run(scene)
            except NoResultError:
                result = None
            assert result is None or result.num_steps >= 0
            scene.look(scene.before)
            assert state() == before, name
            assert scene.replay.overrides.lr_factor(10**6) == 1.0
            assert not scene.replay.evaluates
    assert digest(GlobalRandomPart().capture()) == outside
    assert [one.training for one in program.model.modules()] == modes
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in program.model.modules())
    assert files_of(run) == files
