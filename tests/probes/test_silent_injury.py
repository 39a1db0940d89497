"""One capability is hurt while the mean loss looks recovered: it is named, and it alone."""

from functools import cache

import numpy as np
import pytest

from foreshock.verification import compare
from foreshock.wholeness import NEIGHBOURS
from tests.probes.small_runs import EVERY, LANGUAGE, SmallRun

ANCHOR = 300


@cache
def anchor(seed: int, *, settled: bool = False) -> SmallRun:
    """A healthy run at its anchor, its last states measured; trained once a session.

    At the full rate this young model's capabilities move by themselves as much as the damage
    does: healthy pairs are judged there, and damage after the rate has come down.
    """
    run = SmallRun(seed=seed, settles_at=200 if settled else None)
    run.train(ANCHOR - NEIGHBOURS * EVERY - 1, measuring=False)
    run.train(NEIGHBOURS * EVERY + 1)
    return run


def worse(run: SmallRun, later: SmallRun) -> list[str]:
    near = run.measured[:-1][-NEIGHBOURS:]
    return [
        one.probe for one in compare(run.measured[-1], later.measured[-1], near) if not one.passed
    ]


def test_a_small_model_shows_which_bytes_were_hurt() -> None:
    run = SmallRun(seed=3, width=32, depth=1, num_items=16)
    run.train(169, measuring=False)
    run.train(41)
    healthy, hurt = run.fork(), run.fork()
    hurt.damage_language(scale=6.0)
    for later in (healthy, hurt):
        later.train(EVERY)
    assert worse(run, healthy) == []
    assert worse(run, hurt) == [LANGUAGE]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_language_that_was_hurt_is_named_while_the_mean_loss_has_recovered(seed: int) -> None:
    run = anchor(seed, settled=True)
    healthy, hurt = run.fork(), run.fork()
    hurt.damage_language()
    healthy.train(EVERY)
    hurt.train(EVERY)
    assert worse(run, healthy) == []
    assert worse(run, hurt) == [LANGUAGE]
    before = np.array(run.losses[-100:])
    assert np.mean(hurt.losses[-5:]) < before.mean() + 3 * before.std()  # no loss rule would see it


def false_verdicts(seed: int, steps: int) -> tuple[int, list[tuple[int, int, list[str]]]]:
    """Healthy pairs of a run compared, and those called worse: place, distance, capabilities."""
    run = anchor(seed).fork()
    run.train(steps)
    states, pairs = run.measured, 0
    found: list[tuple[int, int, list[str]]] = []
    for place in range(NEIGHBOURS, len(states) - 2):
        near = states[place - NEIGHBOURS : place]
        for further in (1, 2):
            compared = compare(states[place], states[place + further], near, growth=further**0.5)
            pairs += 1
            if fallen := [one.probe for one in compared if not one.passed]:
                found.append((place, further, fallen))
    return pairs, found


@pytest.mark.slow
def test_healthy_pairs_give_no_false_verdict() -> None:
    assert false_verdicts(2, 100) == (18, [])  # the run in which two neighbours were too few


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_hundred_healthy_pairs_give_no_false_verdict(seed: int) -> None:
    pairs, found = false_verdicts(seed, 400)
    assert (pairs, found) == (78, [])  # 234 with all three
