"""Runs side by side: what is said, and that it is no firmer than the runs allow."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from foreshock.inspection.finding import EpisodeKind, Inspection, RunClass
from foreshock.report.compare import compare
from foreshock.report.compare_text import print_comparison
from foreshock.report.together import Extent, Place, together
from tests.report.inspections import (
    finding,
    healthy,
    inspection,
    outlier,
    run_of,
    series,
    spike,
    spiked_run,
)

LENGTH = 20_000


def _run(name: str, *at: int, lr: float = 3e-4, level: float = 3.0, **rest: object) -> Inspection:
    loss = np.full(LENGTH, level)
    run = run_of(series("loss", loss), series("lr", np.full(LENGTH, lr)))
    episodes = tuple(spike(step) for step in at)
    made = finding(run, episodes=episodes, **rest) if at else healthy(run)
    return inspection(made, path=f"sweep/{name}/train.log")


def _said(*logs: Inspection) -> str:
    return " ".join(compare(logs).conclusions)


def test_the_same_step_in_several_runs_is_the_data_order() -> None:
    logs = [_run("a", 5000), _run("b", 5002), _run("c", 5001), _run("d")]
    one = compare(logs)
    (meeting,) = one.together.meetings
    assert meeting.runs == ("a/train.log", "b/train.log", "c/train.log")
    assert meeting.step == 4991
    assert one.together.believed
    said = " ".join(one.conclusions)
    assert "The same steps in up to 3 of 4 runs (step 4,991; within 5 steps)" in said
    assert "the data order, not the optimiser, if the runs share it" in said
    assert "at its edge" not in said


def test_different_steps_put_the_recipe_at_its_edge() -> None:
    said = _said(_run("a", 5000), _run("b", 9000), _run("c"), _run("d", 12_000), _run("e"))
    assert "3 of 5 runs have trouble (95% interval of the share: 23% to 88%)." in said
    assert "no two of them within 5 steps" in said
    assert "the recipe is at its edge" in said
    assert "data order" not in said


def test_every_run_at_steps_of_its_own_is_past_the_edge() -> None:
    assert "past its edge" in _said(*(_run(str(at), at) for at in (4000, 8000, 12_000)))


def test_two_runs_allow_almost_nothing_and_it_says_so() -> None:
    said = _said(_run("a", 5000), _run("b", 9000))
    assert "two runs allow almost no conclusion" in said
    assert "34% to 100%" in said
    assert "at or past its edge" in said
    assert "There are not two runs" in _said(_run("a", 5000))


def test_one_run_alone_with_trouble() -> None:
    said = _said(_run("a", 5000), _run("b"), _run("c"))
    assert "One run alone had trouble" in said
    assert "so few runs allow little" in said


def test_no_trouble_does_not_prove_a_safe_recipe() -> None:
    said = _said(*(_run(str(seed)) for seed in range(5)))
    assert "No run had trouble; with 5 runs the true share may still be up to 43%." in said


def test_coincidences_that_chance_explains_are_not_believed() -> None:
    rng = np.random.default_rng(0)
    logs = [_run(str(n), *rng.integers(30, LENGTH - 30, 150).tolist()) for n in range(4)]
    one = compare(logs)
    assert one.together.meetings
    assert not one.together.believed
    assert "which may be chance" in " ".join(one.conclusions)


def test_the_expected_number_of_coincidences_is_that_of_simulation() -> None:
    rng = np.random.default_rng(1)
    extents = [Extent(0, 9999, 1)] * 3
    counts, expected = [], 0.0
    for _ in range(300):
        places = [Place(run, int(step)) for run in range(3) for step in rng.integers(0, 10_000, 10)]
        found = together(places, extents, "abc")
        counts.append(found.num_pairs)
        expected = found.expected_pairs
    assert np.mean(counts) == pytest.approx(expected, rel=0.2)


def test_false_alarms_of_shared_steps_are_rare() -> None:
    rng = np.random.default_rng(2)
    believed = 0
    for _ in range(400):
        places = [Place(run, int(step)) for run in range(5) for step in rng.integers(0, 50_000, 4)]
        believed += together(places, [Extent(0, 49_999, 1)] * 5, "abcde").believed
    assert believed <= 10


def test_spikes_of_one_run_do_not_meet_each_other() -> None:
    found = together([Place(0, 10), Place(0, 11)], [Extent(0, 1000, 1)], "a")
    assert (found.meetings, found.num_pairs, found.num_runs) == ((), 0, 1)


def test_the_tolerance_follows_the_logging_interval() -> None:
    found = together([Place(0, 1000), Place(1, 1180)], [Extent(0, 10**6, 100)] * 2, "ab")
    assert found.tolerance_steps == 200
    assert len(found.meetings) == 1


def test_by_learning_rate() -> None:
    logs = [
        *(_run(f"1e-4-{n}", lr=1e-4, level=3.2) for n in range(2)),
        *(_run(f"3e-4-{n}", lr=3e-4, level=2.9) for n in range(2)),
        _run("1e-3-0", 5000, lr=1e-3),
        _run("1e-3-1", lr=1e-3),
    ]
    one = compare(logs)
    assert [(group.lr, group.num_runs, group.num_troubled) for group in one.by_lr] == [
        (1e-4, 2, 0),
        (3e-4, 2, 0),
        (1e-3, 2, 1),
    ]
    assert one.safe_lr == 3e-4
    said = " ".join(one.conclusions)
    assert "The largest learning rate without trouble is 0.0003 (4 runs up to it)" in said
    assert "at 0.001 1 of 2 runs had some." in said
    assert "The lowest final loss, 2.9, was at learning rate 0.0003." in said
    assert "edge" not in said


def test_one_run_a_rate_and_trouble_out_of_order_are_said() -> None:
    said = _said(_run("a", lr=1e-4), _run("b", 5000, lr=2e-4), _run("c", lr=4e-4))
    assert "another seed may move this" in said
    assert "though at 0.0004 none had: the rate alone does not decide it" in said
    assert "even at the lowest" in _said(_run("a", 99, lr=1e-4), _run("b", 999, lr=2e-4))
    assert "none higher was tried" in _said(_run("a", lr=1e-4), _run("b", lr=2e-4))


def test_the_rate_comes_from_what_the_log_says_where_it_logs_none() -> None:
    run = run_of(series("loss", np.full(100, 3.0)))
    logs = [
        inspection(healthy(run), path="a", facts={"learning_rate": "6e-4"}),
        inspection(healthy(run), path="b", facts={"lr": "fast"}),
    ]
    rates = {row.path: row.lr for row in compare(logs).runs}
    assert rates["a"] == 6e-4
    assert math.isnan(rates["b"])


def test_levels_of_the_loss() -> None:
    loss = np.r_[np.linspace(9, 2, 500), np.full(400, 2.0), np.full(100, 2.5)]
    loss[450] = 0.001  # one value is no level
    row = compare([inspection(healthy(run_of(series("loss", loss))))]).runs[0]
    assert (row.final_loss, row.best_loss) == (2.5, 2.0)
    nan = finding(run_of(series("loss", loss)), run_class=RunClass.NAN, nan_from_step=1000)
    row = compare([inspection(nan)]).runs[0]
    assert math.isnan(row.final_loss)
    assert row.best_loss == 2.0


def test_outliers_are_a_rate_and_only_of_runs_long_enough() -> None:
    noisy = finding(
        spiked_run(2000), run_class=RunClass.BENIGN_OUTLIERS, episodes=(outlier(9),), num_outliers=6
    )
    short = finding(spiked_run(40, 20), run_class=RunClass.NOT_JUDGEABLE, episodes=())
    one = compare([inspection(noisy, path="a"), inspection(short, path="b")])
    assert one.median_outliers_per_10k == 30.0
    assert one.num_judged == 1
    assert len(one.runs) == 2


def test_final_losses_of_unlike_lengths_are_not_compared() -> None:
    short = inspection(healthy(spiked_run(400)), path="short")
    said = _said(_run("a"), _run("b"), short)
    assert "end between step 400 and step 20,000: their final losses are not comparable" in said
    assert "Final losses lie between 2.5 (b/train.log) and 3 (a/train.log)." in _said(
        _run("a"), _run("b", level=2.5)
    )


def test_a_plateau_has_no_step_to_share() -> None:
    quiet = spike(5000, EpisodeKind.PLATEAU)
    logs = [
        inspection(finding(spiked_run(), run_class=RunClass.PLATEAU, episodes=(quiet,)), path=name)
        for name in "ab"
    ]
    one = compare(logs)
    assert one.together.num_runs == 0
    assert [row.num_spikes for row in one.runs] == [0, 0]
    assert "steps of their own" not in " ".join(one.conclusions)


def test_several_runs_of_one_file_are_told_apart() -> None:
    one = inspection(finding(), healthy(spiked_run(number=2)), path="x/train.log")
    assert [row.name for row in compare([one]).runs] == ["train.log #1", "train.log #2"]


def test_the_table_fits_a_terminal_and_is_strict_json() -> None:
    logs = [_run(f"seed-{n}-" + "long" * 20, 5000 + 400 * n, lr=1e-4 * (n + 1)) for n in range(3)]
    nan = finding(
        spiked_run(), run_class=RunClass.LOSS_SCALE_COLLAPSE, nan_from_step=9, verdict="[red]"
    )
    logs.append(inspection(nan, path="sweep/[bold]/train.log"))
    one = compare(logs)
    out = io.StringIO()
    print_comparison(one, Console(file=out, width=80, color_system=None))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "[bold]/train.log" in text
    assert "loss scale collapse" in text
    assert "4,990" in text
    assert "NaN" in text
    again = json.loads(json.dumps(one.to_json(), allow_nan=False))
    assert again["runs"][0]["class"] == "loss_scale_collapse"
    assert again["runs"][0]["final_loss"] == "NaN"


def test_no_logs_at_all() -> None:
    assert compare([]).runs == ()
