"""The program on which the precision of the loss decides."""

import numpy as np
import pytest
import torch

from foreshock.core.program import Program, Settings
from foreshock.driver import build
from foreshock.faults.rounded_loss import RoundedLoss
from foreshock.lab.slingshot import MODULUS, SumTable, slingshot_program


def losses(program: Program, steps: int) -> list[float]:
    """Of so many steps in a plain loop."""
    batch = program.stream.data_at([0])
    found: list[float] = []
    for _ in range(steps):
        program.optimizer.zero_grad()
        loss = program.loss(program.model, batch)
        loss.backward()
        program.optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_the_table_is_addition() -> None:
    table = SumTable(3).table.tolist()
    assert len(table) == MODULUS**2
    assert len({(a, b) for a, b, _ in table}) == MODULUS**2
    assert all(total == (a + b) % MODULUS for a, b, total in table)


def test_it_is_learned_and_always_the_same() -> None:
    runs = [losses(build(slingshot_program, Settings(seed=3, max_steps=60)), 60) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][0] == pytest.approx(np.log(MODULUS), abs=0.5)
    assert runs[0][-1] < runs[0][0] / 2


@pytest.mark.slow
def test_it_spikes_in_few_bits_and_does_not_in_many() -> None:
    torch.set_num_threads(1)
    settings = Settings(seed=0, max_steps=500)
    exact = losses(build(slingshot_program, settings), 500)
    program, _ = RoundedLoss().change(build(slingshot_program, settings), np.random.default_rng(0))
    rounded = losses(program, 500)
    assert max(exact[200:]) < 1e-2
    assert min(rounded[50:]) < 1e-4
    assert max(rounded[200:]) > 1
