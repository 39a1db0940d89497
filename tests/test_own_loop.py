"""A loop whose backward pass something else runs is the Guard's own loop, step for step."""

from contextlib import contextmanager

import pytest
import torch

from foreshock.core.errors import Halted, LoopError
from foreshock.own_loop import OwnLoop
from tests.guard.programs import guarded, loss_of, make, poisoned_stages, run

MICRO = 2


def own_loop(training, run_dir, seen=None, **options):
    seen = [] if seen is None else seen
    inner = guarded(training, run_dir, accumulate=MICRO, driven=True, **options)

    def backward(loss):
        share = loss / MICRO
        share.backward()
        return share.detach()

    @contextmanager
    def around(last):
        seen.append(("in", last))
        try:
            yield
        finally:
            seen.append(("out", last))

    def schedule(last):
        if last:
            training.scheduler.step()

    return OwnLoop(
        inner,
        accumulate=MICRO,
        place=lambda batch: batch.clone(),
        around=around,
        backward=backward,
        schedule=schedule,
    )


def drive(training, loop):
    training.model.train()
    with loop:
        try:
            for batch in loop:
                loop.step(loss_of(training.model, batch))
        except Halted as halt:
            assert str(halt) == loop.halted
        return loop.digest()


def decided(guard):
    """Kinds of records, but for those that a writing thread adds when it is done."""
    kinds = (record["kind"] for record in guard.records)
    return [kind for kind in kinds if not kind.startswith("snapshot")]


@pytest.mark.parametrize(("poison", "after", "steps"), [(60, 2000, 60), (48, 8, None)])
def test_the_same_run_as_the_guards_own(tmp_path, poison, after, steps):
    """Also where the data ends between two micro-steps, and the run goes back from there."""
    stages = poisoned_stages(320, poison, after)
    training = make(stages=stages)
    guard = guarded(training, tmp_path / "plain", accumulate=MICRO, max_steps=steps)
    expected = run(training, guard)
    again = make(stages=stages)
    loop = own_loop(again, tmp_path / "run", max_steps=steps)
    assert drive(again, loop) == expected
    assert loop.book.num_rollbacks == guard.book.num_rollbacks > 0
    kinds = decided(loop)
    assert kinds == decided(guard)
    if steps is None:
        assert kinds.index("step_incomplete") < kinds.index("plan")


def test_each_micro_step_runs_in_its_context(tmp_path):
    seen = []
    training = make()
    loop = own_loop(training, tmp_path / "run", seen, max_steps=2)
    with loop:
        for batch in loop:
            assert seen[-1][0] == "in"
            loop.step(loss_of(training.model, batch))
            assert seen[-1][0] == "out"
    first, second = [("in", False), ("out", False)], [("in", True), ("out", True)]
    assert seen == [*first, *second] * 2


def test_the_context_is_left_where_the_loop_breaks(tmp_path):
    seen = []
    with pytest.raises(ZeroDivisionError), own_loop(make(), tmp_path / "run", seen) as loop:
        next(loop)
        raise ZeroDivisionError
    assert seen == [("in", False), ("out", False)]


def test_terms_are_shared_out(tmp_path):
    training = make()
    with own_loop(training, tmp_path / "run", terms=("twice",)) as loop:
        for _ in range(MICRO):
            loss = loss_of(training.model, next(loop))
            verdict = loop.step(loss, {"twice": 2 * loss})
        assert verdict.committed
        next(loop)
        with pytest.raises(LoopError, match="terms"):
            loop.step(loss_of(training.model, torch.zeros(2, 12, dtype=torch.int64)))


def test_misuse_is_told(tmp_path):
    training = make()
    with own_loop(training, tmp_path / "run") as loop:
        with pytest.raises(LoopError, match="without a batch"):
            loop.step(torch.zeros((), requires_grad=True))
        next(loop)
        with pytest.raises(LoopError, match="was asked for before"):
            next(loop)
    assert not hasattr(loop, "nothing")
