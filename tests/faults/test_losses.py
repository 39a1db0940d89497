"""Faults of the loss and of its labels: its value and its gradient against a reference."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Loss, Program
from foreshock.faults.masked_labels import MaskedLabels
from foreshock.faults.printed_loss import PrintedLoss
from foreshock.faults.shifted_labels import ShiftedLabels
from foreshock.faults.summed_loss import SummedLoss
from tests.faults.programs import batch_of, small_program


def changed(fault: ProgramFault, program: Program | None = None) -> Program:
    return fault.change(program or small_program(), np.random.default_rng(0))[0]


def loss_and_gradient(program: Program, loss: Any = None) -> tuple[float, torch.Tensor]:
    program.optimizer.zero_grad()
    found = (loss or program.loss)(program.model, batch_of(0))
    found.backward()
    gradient = torch.cat([one.grad.flatten() for one in program.model.parameters()])
    return float(found.detach()), gradient


@pytest.mark.parametrize(
    ("fault", "factor"),
    [
        (SummedLoss(intensity=0.5, count=16), 4.0),
        (SummedLoss(mode="divided_twice", count=16), 1 / 16),
    ],
)
def test_a_loss_times_a_number(fault: ProgramFault, factor: float) -> None:
    value, gradient = loss_and_gradient(small_program())
    found = loss_and_gradient(changed(fault))
    assert found[0] == pytest.approx(factor * value)
    torch.testing.assert_close(found[1], factor * gradient)


@pytest.mark.parametrize(
    ("fault", "factor"),
    [
        (PrintedLoss(intensity=0.5, count=16), 4.0),
        (PrintedLoss(mode="lost", intensity=0.35), 0.65),
        (PrintedLoss(mode="lost"), 0.0),
    ],
)
def test_a_loss_that_is_told_wrong_has_the_same_gradient(fault: Any, factor: float) -> None:
    value, gradient = loss_and_gradient(small_program())
    found = loss_and_gradient(changed(fault))
    assert found[0] == pytest.approx(factor * value, rel=1e-6, abs=0)
    assert torch.equal(found[1], gradient)


def test_a_loss_with_terms_keeps_them() -> None:
    def with_terms(model: Any, batch: Any) -> Loss:
        total = model(batch[:, :-1]).square().mean()
        return Loss(total=total, terms={"main": total})

    for fault in (SummedLoss(count=2), PrintedLoss(intensity=0.5)):
        program = small_program(loss=with_terms)
        before = with_terms(program.model, batch_of(0))
        after = changed(fault, program).loss(program.model, batch_of(0))
        assert torch.equal(after.terms["main"], before.terms["main"])
        assert not torch.equal(after.total, before.total)


@pytest.mark.parametrize(("intensity", "shifted"), [(0.5, 24), (1.0, 48), (0.01, 1)])
def test_labels_move_on_by_one(intensity: float, shifted: int) -> None:
    def reference(model: Any, batch: Any) -> torch.Tensor:
        target = batch[:, 1:].flatten()
        labels = [int(target[(n + (n < shifted)) % 48]) for n in range(48)]
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), torch.tensor(labels))

    right = loss_and_gradient(small_program(), reference)
    found = loss_and_gradient(changed(ShiftedLabels(intensity=intensity)))
    assert found[0] == right[0]
    assert torch.equal(found[1], right[1])


@pytest.mark.parametrize(("intensity", "left"), [(1.0, 4), (0.5, 14)])
def test_few_labels_are_left(intensity: float, left: int) -> None:
    def reference(model: Any, batch: Any) -> torch.Tensor:
        logits = model(batch[:, :-1]).flatten(0, 1)
        return cross_entropy(logits[-left:], batch[:, 1:].flatten()[-left:])

    right = loss_and_gradient(small_program(), reference)
    found = loss_and_gradient(changed(MaskedLabels(intensity=intensity)))
    assert found[0] == pytest.approx(right[0])
    torch.testing.assert_close(found[1], right[1])


def test_labels_that_are_hidden_do_not_count_where_a_program_takes_the_mean() -> None:
    def by_sample(model: Any, batch: Any) -> torch.Tensor:
        logits = model(batch[:, :-1]).flatten(0, 1)
        losses = cross_entropy(logits, batch[:, 1:].flatten(), reduction="none")
        return losses.view(len(batch), -1).mean(dim=1).mean()

    found = loss_and_gradient(changed(MaskedLabels(), small_program(loss=by_sample)))
    right = loss_and_gradient(changed(MaskedLabels()))
    assert found[0] == pytest.approx(right[0])
    torch.testing.assert_close(found[1], right[1])


def test_labels_are_found_however_the_loss_names_them() -> None:
    def by_name(model: Any, batch: Any) -> torch.Tensor:
        logits = model(batch[:, :-1]).flatten(0, 1)
        return cross_entropy(input=logits, target=batch[:, 1:].flatten())

    for fault in (ShiftedLabels(), MaskedLabels()):
        named = changed(fault, small_program(loss=by_name))
        found, right = loss_and_gradient(named), loss_and_gradient(changed(fault))
        assert found[0] == right[0]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SummedLoss(count=1), "count is 1"),
        (lambda: SummedLoss(mode="mean"), "'mean'; allowed: summed"),  # type: ignore[arg-type]
        (lambda: MaskedLabels(fewest=0), "fewest is 0"),
        (lambda: PrintedLoss(count=1), "count is 1"),
        (lambda: PrintedLoss(mode="x"), "'x'; allowed: multiplied"),  # type: ignore[arg-type]
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
