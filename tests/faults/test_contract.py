"""What every fault keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import foreshock.faults
from foreshock.core.errors import ConfigError
from foreshock.core.fault import DataFault, Fault, StateFault

FILES = sorted(
    path.stem for path in Path(foreshock.faults.__path__[0]).glob("*.py") if path.stem[0] != "_"
)


def fault_in(file: str) -> type[Fault]:
    module = import_module(f"foreshock.faults.{file}")
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
        if issubclass(value, Fault)
    ]
    assert len(own) == 1, f"{file}.py must hold exactly one fault, it holds {own}"
    return own[0]


DATA_FAULTS = [file for file in FILES if issubclass(fault_in(file), DataFault)]
STATE_FAULTS = [file for file in FILES if issubclass(fault_in(file), StateFault)]


class Trained:
    """A small model in training, always the same: an embedding, a matrix, a bias."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.tokens = torch.randint(11, (64,), generator=generator)
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.tokens), self.tokens.roll(1)).backward()
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        moments = self.optimizer.state_dict()["state"]
        tensors = [*self.model.state_dict().values()]
        tensors += [moments[index][key] for index in sorted(moments) for key in moments[index]]
        return [tensor.clone() for tensor in tensors]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(
        a.eq(b).logical_or(a.isnan() & b.isnan()).all() for a, b in zip(left, right, strict=True)
    )


def test_the_folder_has_faults_of_both_sorts() -> None:
    assert DATA_FAULTS
    assert STATE_FAULTS
    assert sorted(DATA_FAULTS + STATE_FAULTS) == FILES


@pytest.mark.parametrize("file", FILES)
def test_it_is_a_final_frozen_configuration_named_after_its_file(file: str) -> None:
    fault = fault_in(file)
    assert fault.name == file
    assert fault.__name__ == "".join(word.capitalize() for word in file.split("_"))
    assert fault.cause.isidentifier()
    assert fault.cause == fault.cause.lower()
    assert getattr(fault, "__final__", False), "decorate it with typing.final"
    assert all(field.kw_only for field in dataclasses.fields(fault))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fault(), dataclasses.fields(fault)[0].name, None)


@pytest.mark.parametrize("file", FILES)
def test_it_says_what_it_does_and_where_it_comes_from(file: str) -> None:
    doc = inspect.getdoc(fault_in(file)) or ""
    assert "Reference:" in doc or "No source:" in doc
    for field in dataclasses.fields(fault_in(file)):
        assert f"{field.name}:" in doc


@pytest.mark.parametrize("file", DATA_FAULTS)
@pytest.mark.parametrize("shape", [(0, 9), (5, 1), (40, 129)])
def test_poison_returns_a_damaged_copy(file: str, shape: tuple[int, int]) -> None:
    fault = fault_in(file)()
    assert isinstance(fault, DataFault)
    clean = np.full(shape, ord("a"), dtype=np.uint8)
    clean.flags.writeable = False  # windows may lie over bytes
    poisoned = fault.poison(clean, np.random.default_rng(0))
    assert (poisoned.shape, poisoned.dtype) == (shape, np.uint8)
    assert not np.shares_memory(poisoned, clean)
    assert (clean == ord("a")).all()
    if shape == (40, 129):
        assert (poisoned != clean).any()


@pytest.mark.parametrize("file", DATA_FAULTS)
def test_poison_draws_everything_from_the_generator(file: str) -> None:
    fault = fault_in(file)()
    assert isinstance(fault, DataFault)
    clean = np.full((40, 129), ord("a"), dtype=np.uint8)
    first, again, other = (
        fault.poison(clean, np.random.default_rng(seed)).tobytes() for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("file", STATE_FAULTS)
def test_inject_damages_training_and_says_how(file: str) -> None:
    fault = fault_in(file)()
    assert isinstance(fault, StateFault)
    healthy, damaged = Trained(), Trained()
    assert same(healthy.state(), damaged.state())
    said = fault.inject(damaged.model, damaged.optimizer, np.random.default_rng(0))
    assert len(said.split()) >= 3
    healthy.step()
    damaged.step()
    assert same(healthy.state(), healthy.state())
    assert not same(healthy.state(), damaged.state())


@pytest.mark.parametrize("file", STATE_FAULTS)
def test_inject_draws_everything_from_the_generator(file: str) -> None:
    fault = fault_in(file)()
    assert isinstance(fault, StateFault)
    first, again = Trained(), Trained()
    said = [
        fault.inject(run.model, run.optimizer, np.random.default_rng(7)) for run in (first, again)
    ]
    torch.manual_seed(0)
    np.random.seed(0)
    first.step()
    again.step()
    assert said[0] == said[1]
    assert same(first.state(), again.state())


@pytest.mark.parametrize("file", STATE_FAULTS)
def test_inject_refuses_a_model_it_cannot_damage(file: str) -> None:
    fault = fault_in(file)()
    assert isinstance(fault, StateFault)
    empty, some = nn.Identity(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(some.parameters())
    with pytest.raises(ConfigError, match=type(fault).__name__):
        fault.inject(empty, optimizer, np.random.default_rng(0))
