"""Largest logit, log Z and entropy against fp64, for logits of every kind."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.core.signal import Attached, Clock, Moment, Site
from foreshock.signals.output_logits import OutputLogitsSignal
from tests.reference import signals as reference
from tests.signals.recording import values_of

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


class Model(nn.Module):
    """Its head gives what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Identity()
        self.weight = nn.Parameter(torch.ones(1))


def attach(clock: Clock | None = None, **options: Any) -> tuple[Model, Attached]:
    model = Model()
    site = Site(
        model=model,
        optimizer=None,
        parameters=(("weight", model.weight),),
        anatomy=SimpleNamespace(head="head"),
        clock=clock or Clock(),
    )
    attached = OutputLogitsSignal(**options).attach(site)
    assert attached is not None
    return model, attached


def drawn(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def masked() -> torch.Tensor:
    logits = drawn(3, 5, 40)
    logits[..., 30:] = -math.inf
    return logits


def hot() -> torch.Tensor:
    logits = torch.zeros(3, 5, 40)
    logits[..., 7], logits[1, 2, 9] = 30.0, 30.0
    return logits


LOGITS = {
    "random": lambda: drawn(3, 5, 40),
    "one row": lambda: drawn(40),
    "all equal": lambda: torch.full((3, 5, 40), -2.5),
    "one hot pair": hot,
    "far from 0": lambda: drawn(3, 5, 40) + 3000.0,
    "far below 0": lambda: drawn(3, 5, 40) - 3000.0,
    "large": lambda: drawn(3, 5, 40, scale=1e4),
    "tiny": lambda: drawn(3, 5, 40, scale=1e-20),
    "masked": masked,
    "one token": lambda: drawn(3, 5, 1),
    "bf16": lambda: drawn(3, 5, 40).bfloat16(),
    "fp64": lambda: drawn(3, 5, 40).double(),
    "not contiguous": lambda: drawn(3, 40, 5).transpose(1, 2),
}


@pytest.mark.parametrize("kind", LOGITS)
def test_against_fp64(kind: str) -> None:
    model, attached = attach(exact=True)
    first = LOGITS[kind]()
    second = LOGITS[kind]() * 0.5
    model.head(first)
    model.head(second)
    found = values_of(attached, NOTHING)
    true = reference.output([reference.array(first), reference.array(second)])
    for name, value in true.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=2e-6), name


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 17, -1])
def test_one_bad_logit_shows_everywhere(place: int, bad: float) -> None:
    model, attached = attach(exact=True)
    logits = drawn(3, 5, 40)
    logits.view(-1)[place] = bad
    model.head(logits)
    model.head(drawn(3, 5, 40))
    found = values_of(attached, NOTHING)
    assert len(found) == 4
    for name, value in found.items():
        expected = math.nan if name.startswith("output_entropy") else bad
        assert value == pytest.approx(expected, nan_ok=True), name


def test_a_row_without_a_token_that_is_allowed() -> None:
    model, attached = attach(exact=True)
    logits = drawn(2, 40)
    logits[0] = -math.inf
    model.head(logits)
    found = values_of(attached, NOTHING)
    assert found["log_z/global"] == -math.inf and found["log_z_absmax/global"] == math.inf
    assert math.isnan(found["output_entropy/global"])
    assert found["max_output_logit/global"] == logits[1].max()


@pytest.mark.parametrize("rows", [1, 3, 15, 16, 17, 100])
def test_every_sixteenth_row_another_set_each_step(rows: int) -> None:
    clock = Clock()
    model, attached = attach(clock)
    logits = drawn(rows, 40)
    seen: set[int] = set()
    for clock.step in range(1, 17):
        model.head(logits)
        found = values_of(attached, NOTHING)
        every = min(16, rows)
        places = list(range(clock.step % every, rows, every))
        true = reference.output([reference.array(logits[places])])
        assert found == pytest.approx(true, rel=1e-5)
        seen |= set(places)
    assert seen == set(range(rows))


def test_no_rows_at_all_and_no_forward_give_no_value() -> None:
    model, attached = attach()
    assert values_of(attached, NOTHING) == {}
    model.head(torch.zeros(0, 40))
    assert values_of(attached, NOTHING) == {}


class Part(torch.Tensor):
    """A DTensor in so far: this rank has half of the vocabulary."""

    @property
    def shape(self) -> Any:
        whole = super().shape
        return torch.Size((*whole[:-1], 2 * whole[-1]))

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


@pytest.mark.parametrize("worst", [2.0, math.nan, math.inf])
def test_where_a_rank_has_a_part_of_the_vocabulary_the_largest_logit_is_known(worst: float) -> None:
    _, attached = attach()
    logits = drawn(9, 20)
    logits[4, 3] = worst
    attached._see(logits.as_subclass(Part))
    found = values_of(attached, NOTHING)
    expected = {"max_output_logit/global": logits.amax().item()}
    assert found == pytest.approx(expected, nan_ok=True)


def test_rows_are_counted_from_one() -> None:
    with pytest.raises(ConfigError, match="every_rows"):
        OutputLogitsSignal(every_rows=0)
