"""A scene that a caller puts together, of a state that the run itself had; and one of a run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from foreshock.core.errors import RunDirError, SnapshotError, StreamError
from foreshock.core.names import LOSS, series_name
from foreshock.driver import build
from foreshock.durable import RealDisk
from foreshock.incident_case import IncidentCase, Recorded
from foreshock.journal import Journal
from foreshock.scene_of_run import scene_of
from foreshock.settling import by_case, experiments_named
from foreshock.snapshots.codec import digest
from foreshock.trial import BudgetSpentError, NoResultError, Trial, chance, is_close
from tests.experiments.runs import (
    broken_run,
    healthy,
    outcome_of,
    put_together,
    recipe,
    scaled_moments,
    scaled_weight,
    scene_at,
    settings,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_damaged_moments_are_told_from_the_state_that_the_run_had() -> None:
    with put_together(scaled_moments) as scene:
        names = {
            "replay": "stays_away",
            "inspection": "moments_damaged",
            "other_batch": "comes_back",
            "bisection": "none_needed",
            "repaired_moments": "cured",
            "fp32_forward": "not_cured",
            "left_out": "stays_away",
            "earlier_state": "stays_away",
        }
        assert {name: outcome_of(scene, name).outcome for name in names} == names
        assert scene.exact is True
        assert scene.arena is not None and scene.arena.is_real


def test_a_damaged_weight_is_told_from_damaged_moments() -> None:
    with put_together(scaled_weight) as scene:
        result = outcome_of(scene, "inspection")
        assert result.outcome == "weights_damaged"
        assert "out.weight" in result.statement
        assert outcome_of(scene, "repaired_moments").outcome == "not_cured"
        assert outcome_of(scene, "other_batch").outcome == "comes_back"


def test_a_sound_state_is_called_sound() -> None:
    with put_together(scaled_moments) as scene:
        scene.suspect = scene.before
        result = outcome_of(scene, "inspection")
        assert (result.outcome, scene.suspect_after) == ("sound", 0)


def test_moments_that_are_not_finite_are_seen_without_any_comparison() -> None:
    def broken(program: Any) -> None:
        state = program.optimizer.state[program.model.out.weight]
        state["exp_avg_sq"][0, 0] = float("nan")

    with put_together(broken) as scene:
        result = outcome_of(scene, "inspection")
        assert result.outcome == "moments_damaged"
        assert "not finite" in result.statement


def test_a_trial_changes_nothing_and_says_the_same_twice() -> None:
    with put_together(scaled_moments) as scene:
        states = [digest(scene.look(one).captured("optimizer")) for one in ("older", "suspect")]
        first = scene.comes(scene.steps, "suspect")
        second = scene.comes(scene.steps, "suspect")
        assert isinstance(first, Trial)
        assert first == second
        assert [
            digest(scene.look(one).captured("optimizer")) for one in ("older", "suspect")
        ] == states
        assert first.excess_loss > 0
        assert len(first.losses) == first.num_steps


def test_a_budget_that_ends_within_a_trial_leaves_the_state_as_it_was() -> None:
    with put_together(scaled_moments) as scene:
        before = scene.steps_trained
        state = digest(scene.look("suspect").captured("model"))
        scene.is_spent = lambda: scene.steps_trained >= before + 3
        with pytest.raises(BudgetSpentError):
            scene.comes(scene.steps, "suspect")
        assert scene.steps_trained == before + 3
        assert digest(scene.replay.captured("model")) == state


def test_chance_is_the_tail_of_a_binomial() -> None:
    rate = 0.07
    assert chance(0, 20, rate) == pytest.approx(1)
    assert chance(1, 20, rate) == pytest.approx(1 - (1 - rate) ** 20)
    assert chance(20, 20, 0.5) == pytest.approx(0.5**20, abs=1e-12)
    assert is_close([1.0, 1.2, 0.9, 1.1], [1.001, 1.2, 0.9, 1.1])
    assert not is_close([1.0, 1.2, 0.9, 1.1], [1.1, 1.2, 0.9, 1.1])


@pytest.mark.slow
def test_where_outliers_are_usual_as_many_of_them_are_not_the_incident() -> None:
    with put_together(scaled_moments) as scene:
        trial = scene.comes(scene.steps, "suspect")
        assert scene.comes_back(trial)
        scene._usual_rate = 0.5
        assert not scene.comes_back(trial._replace(broken=False))
        scene._usual_rate = 0.005
        with pytest.raises(NoResultError, match="healthy data"):
            scene.comes_back(trial, without=trial._replace(broken=True))
        assert not scene.comes_back(trial._replace(broken=False), without=trial)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken_run(tmp_path_factory.mktemp("scene") / "run", "moments")


def test_the_case_of_a_run_is_the_one_that_the_guard_saw(run: Path) -> None:
    view = Journal.read(RealDisk(), run)
    found = IncidentCase(view, 1)
    case = found.case(facts={"precision": "fp32"})
    assert case.last_step == found.plan_step
    assert case.onset_step == found.onset_step == found.diagnosis.onset_step
    assert case.alarms == found.alarms
    assert case.facts["precision"] == "fp32"
    told = view.readings(found.attempt, [series_name(LOSS.name)])
    last = int(found.plan_step)
    wanted = [float(v[0]) for s, v in zip(told.steps, told.values, strict=True) if s <= last]
    assert case.timeline.values(series_name(LOSS.name)).tolist() == wanted
    assert [one.helped for one in case.interventions]
    with scene_at(run, "moments") as scene:
        top = by_case(scene, recipe())(()).candidates
        assert sum(one.probability for one in top) == pytest.approx(1)


def test_what_cannot_be_replayed_is_refused_in_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no incident 7"):
        scene_of(run, build(healthy, settings()), recipe(), incident=7)
    with pytest.raises(StreamError, match="not that of the run"):
        scene_of(run, build(healthy, settings(5)), recipe())
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    for path in (copy / "snapshots").iterdir():
        (path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(SnapshotError, match="disk_keep"):
        scene_of(copy, build(healthy, settings()), recipe())
    shutil.rmtree(copy / "readings")
    case = IncidentCase(Journal.read(RealDisk(), copy), 1)
    assert len(case.case().timeline) == 0
    assert case.recorded(1).rows == {}


def test_without_readings_an_inspection_refuses(run: Path) -> None:
    with scene_at(run, "moments") as scene:
        scene.recorded = Recorded((), {})
        (one,) = experiments_named(["inspection"])
        assert "readings" in one.why_not(scene)
