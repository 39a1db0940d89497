"""A loop that runs backward passes and the schedule itself is guarded like any other."""

import pytest
import torch

import foreshock
from foreshock.core.errors import LoopError
from tests.guard.programs import guarded, loss_of, make, poisoned_stages, recipe, run

MICRO = 2
STAGES = (320, 60, 2000)


def drive(training, guard, *, ahead=True, hurt=None):
    """A loop as frameworks write it: all batches of a step at first, or one by one."""
    training.model.train()
    with guard:
        while True:
            batches = []
            try:
                for _ in range(MICRO if ahead else 1):
                    batches.append(next(guard))
            except StopIteration:
                return guard.digest()
            for place in range(MICRO):
                if place == len(batches):
                    batches.append(next(guard))
                share = loss_of(training.model, batches[place]) / MICRO
                scaled = share if training.scaler is None else training.scaler.scale(share)
                scaled.backward()
                guard.gathered(share)
            if hurt is not None:
                hurt(guard, training)
            guard.update()
            training.optimizer.zero_grad()
            if training.scheduler is not None:
                training.scheduler.step()


def twin(tmp_path, steps, **options):
    """What the Guard's own loop makes of the same training."""
    training = make(stages=poisoned_stages(*STAGES), **options)
    guard = guarded(training, tmp_path / "twin", accumulate=MICRO, max_steps=steps)
    return run(training, guard), guard


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("options", [{}, {"scaler": True}, {"optimizer": "fused"}])
def test_the_same_run_as_by_step_rollback_included(tmp_path, ahead, options):
    expected, other = twin(tmp_path, 90, **options)
    training = make(stages=poisoned_stages(*STAGES), **options)
    guard = guarded(training, tmp_path / "run", accumulate=MICRO, driven=True, max_steps=90)
    assert drive(training, guard, ahead=ahead) == expected
    assert guard.book.num_rollbacks == other.book.num_rollbacks > 0
    assert guard.num_quarantined == other.num_quarantined > 0


def test_a_skipped_step_is_exact_and_leaves_the_schedule_to_the_loop(tmp_path):
    training = make()
    guard = guarded(training, tmp_path / "run", accumulate=MICRO, driven=True, max_steps=30)
    seen = []

    def hurt(guard, training):
        if guard.step_number == 19:
            for parameter in training.model.parameters():
                parameter.grad.fill_(torch.nan)
        seen.append([p.detach().clone() for p in training.model.parameters()])

    drive(training, guard, hurt=hurt)
    assert all(map(torch.equal, seen[19], seen[20]))
    assert not any(map(torch.equal, seen[18], seen[19]))
    assert training.scheduler.last_epoch == 30


def test_a_run_that_was_cut_off_goes_on_exactly(tmp_path):
    expected, _ = twin(tmp_path, 90)

    class CutError(Exception):
        pass

    def cut(guard, training):
        if guard.step_number == 57:
            raise CutError

    training = make(stages=poisoned_stages(*STAGES))
    guard = guarded(training, tmp_path / "run", accumulate=MICRO, driven=True, max_steps=90)
    with pytest.raises(CutError):
        drive(training, guard, hurt=cut)
    training = make(stages=poisoned_stages(*STAGES))
    options = {"accumulate": MICRO, "driven": True, "max_steps": 90, "resume": True}
    guard = guarded(training, tmp_path / "run", **options)
    assert drive(training, guard) == expected


def test_the_last_step_may_have_fewer_micro_steps(tmp_path):
    training = make()
    guard = guarded(training, tmp_path / "run", accumulate=4, driven=True, recipe=recipe())
    with guard:
        for size in (4, 3, 1):
            shares = [loss_of(training.model, next(guard)) / size for _ in range(size)]
            for share in shares:
                share.backward()
                guard.gathered(share)
            verdict = guard.update()
            assert verdict.committed
        assert guard.step_number == 3


def test_misuse_is_told(tmp_path):
    training = make()
    with guarded(training, tmp_path / "a", accumulate=MICRO, driven=True) as guard:
        with pytest.raises(LoopError, match="after a batch"):
            guard.gathered(torch.tensor(1.0))
        batches = [next(guard), next(guard)]
        with pytest.raises(LoopError, match="accumulate is 2"):
            next(guard)
        share = loss_of(training.model, batches[0])
        share.backward()
        with pytest.raises(LoopError, match="a scalar"):
            guard.gathered(torch.zeros(2))
        guard.gathered(share)
        with pytest.raises(LoopError, match="1 batches that have no loss yet"):
            guard.update()
    with guarded(make(), tmp_path / "b") as guard:
        next(guard)
        with pytest.raises(LoopError, match="driven=True"):
            guard.gathered(torch.tensor(1.0))
        with pytest.raises(LoopError):
            guard.update()


def test_the_loss_of_each_sample_is_told_of_each_micro_step(tmp_path):
    training = make()
    options = {"accumulate": MICRO, "driven": True, "per_sample": True, "max_steps": 3}
    with guarded(training, tmp_path / "run", **options) as guard:
        for number, batch in enumerate(guard):
            share = loss_of(training.model, batch) / MICRO
            share.backward()
            guard.gathered(share, samples=torch.tensor([1.0, 2.0 + number]))
            if number % MICRO:
                guard.update()
    seen = foreshock.open(tmp_path / "run").read("loss_largest_sample/global")
    assert list(seen["loss_largest_sample/global"]) == [3.0, 5.0, 7.0]
