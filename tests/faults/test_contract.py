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

import foreshock.causes
import foreshock.faults
from foreshock.core.case import Change
from foreshock.core.errors import ConfigError
from foreshock.core.fault import DataFault, Fault, OrderFault, ProgramFault, StateFault
from foreshock.core.program import Program
from tests.faults.programs import small_program, state_of, train

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
ORDER_FAULTS = [file for file in FILES if issubclass(fault_in(file), OrderFault)]
PROGRAM_FAULTS = [file for file in FILES if issubclass(fault_in(file), ProgramFault)]
GRADED = [
    file
    for file in FILES
    if any(field.name == "intensity" for field in dataclasses.fields(fault_in(file)))
]
CAUSES = {path.stem for path in Path(foreshock.causes.__path__[0]).glob("*.py")}
TEXT = b"The quick brown fox jumps over the lazy dog, "
ALSO_IN_PROBES = {"changed_kernel"}
"""Faults by which whatever the model computes is changed, probes not excepted."""


def graded(file: str, intensity: float) -> Fault:
    """The fault at this intensity."""
    settings: dict[str, float] = {"intensity": intensity}
    return fault_in(file)(**settings)


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


def test_the_folder_has_faults_of_every_sort() -> None:
    sorts = (DATA_FAULTS, ORDER_FAULTS, STATE_FAULTS, PROGRAM_FAULTS)
    assert all(sorts)
    assert sorted(file for sort in sorts for file in sort) == FILES


@pytest.mark.skipif("edge_of_stability" not in CAUSES, reason="not all causes are written yet")
@pytest.mark.parametrize("file", FILES)
def test_its_cause_can_be_told(file: str) -> None:
    assert fault_in(file).cause in CAUSES


@pytest.mark.parametrize("file", GRADED)
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_an_intensity_out_of_range_is_named(file: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{fault_in(file).__name__}.intensity is {value}"):
        graded(file, value)


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
    clean = np.resize(np.frombuffer(TEXT, dtype=np.uint8), shape)
    before = clean.copy()
    clean.flags.writeable = False  # windows may lie over bytes
    poisoned = fault.poison(clean, np.random.default_rng(0))
    assert (poisoned.shape, poisoned.dtype) == (shape, np.uint8)
    assert not np.shares_memory(poisoned, clean)
    assert (clean == before).all()
    if shape == (40, 129):
        assert (poisoned != clean).any()


@pytest.mark.parametrize("file", DATA_FAULTS)
def test_poison_draws_everything_from_the_generator(file: str) -> None:
    fault = graded(file, 0.5) if file in GRADED else fault_in(file)()
    assert isinstance(fault, DataFault)
    clean = np.resize(np.frombuffer(TEXT, dtype=np.uint8), (40, 129))
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


@pytest.mark.parametrize("file", [file for file in DATA_FAULTS if file in GRADED])
def test_poison_at_intensity_0_spares_every_window(file: str) -> None:
    fault = graded(file, 0.0)
    assert isinstance(fault, DataFault)
    clean = np.random.default_rng(0).integers(256, size=(40, 129), dtype=np.uint8)
    assert (fault.poison(clean, np.random.default_rng(0)) == clean).all()


@pytest.mark.parametrize("file", [file for file in STATE_FAULTS if file in GRADED])
def test_inject_at_intensity_0_leaves_the_state(file: str) -> None:
    fault = graded(file, 0.0)
    assert isinstance(fault, StateFault)
    healthy, spared = Trained(), Trained()
    fault.inject(spared.model, spared.optimizer, np.random.default_rng(0))
    healthy.step()
    spared.step()
    assert same(healthy.state(), spared.state())


@pytest.mark.parametrize("file", ORDER_FAULTS)
@pytest.mark.parametrize(("first", "num_samples"), [(1, 1), (10, 400), (4000, 320), (7, 0)])
def test_reorder_stays_within_what_is_due_or_past(file: str, first: int, num_samples: int) -> None:
    for intensity in (0.0, 0.35, 1.0):
        fault = graded(file, intensity)
        assert isinstance(fault, OrderFault)
        due = np.arange(first, first + num_samples)
        found = fault.reorder(first, num_samples, np.random.default_rng(0))
        again = fault.reorder(first, num_samples, np.random.default_rng(0))
        assert (found.shape, found.dtype) == ((num_samples,), np.int64)
        assert ((found >= 0) & (found < first + num_samples)).all()
        assert (found == again).all()
        if num_samples > 64:
            assert (found == due).all() == (intensity == 0)


@pytest.mark.parametrize("file", PROGRAM_FAULTS)
def test_change_hurts_training_and_says_how(file: str) -> None:
    healthy, changed = small_program(), small_program()
    assert train(healthy, 2) == train(changed, 2)
    fault = fault_in(file)()
    assert isinstance(fault, ProgramFault)
    after, said = fault.change(changed, np.random.default_rng(0))
    assert len(said.split()) >= 3
    for part in ("model", "optimizer", "stream", "scheduler"):
        assert getattr(after, part) is getattr(changed, part)
    losses = (train(healthy, 6, first=2), train(after, 6, first=2))
    assert losses[0] != losses[1] or not same(state_of(healthy), state_of(after))


@pytest.mark.parametrize("file", PROGRAM_FAULTS)
def test_change_lasts_over_a_state_that_is_loaded(file: str) -> None:
    """Whoever trains on from any state with the changed program has the fault."""
    before = small_program()
    train(before, 2)
    fault = fault_in(file)()
    assert isinstance(fault, ProgramFault)
    later, _ = fault.change(small_program(), np.random.default_rng(0))
    for program in (clean := small_program(), later):
        program.model.load_state_dict(before.model.state_dict())
        program.optimizer.load_state_dict(before.optimizer.state_dict())
        program.scheduler.load_state_dict(before.scheduler.state_dict())
    losses = (train(clean, 6, first=2), train(later, 6, first=2))
    assert losses[0] != losses[1] or not same(state_of(clean), state_of(later))


@pytest.mark.parametrize("file", PROGRAM_FAULTS)
def test_change_at_intensity_0_changes_nothing(file: str) -> None:
    healthy, spared = small_program(), small_program()
    fault = graded(file, 0.0)
    assert isinstance(fault, ProgramFault)
    after, _ = fault.change(spared, np.random.default_rng(0))
    assert train(healthy, 3) == train(after, 3)
    assert same(state_of(healthy), state_of(after))


@pytest.mark.parametrize("file", PROGRAM_FAULTS)
def test_change_draws_everything_from_the_generator(file: str) -> None:
    found: list[tuple[list[float], Program]] = []
    for seed in (0, 1):
        fault = fault_in(file)()
        assert isinstance(fault, ProgramFault)
        after, _ = fault.change(small_program(), np.random.default_rng(7))
        torch.manual_seed(seed)
        np.random.seed(seed)
        found.append((train(after, 3), after))
    assert np.array_equal(found[0][0], found[1][0], equal_nan=True)
    assert same(state_of(found[0][1]), state_of(found[1][1]))


@pytest.mark.parametrize("file", sorted(set(PROGRAM_FAULTS) - ALSO_IN_PROBES))
def test_change_leaves_probes_alone(file: str) -> None:
    program = small_program()
    fault = fault_in(file)()
    assert isinstance(fault, ProgramFault)
    after, _ = fault.change(program, np.random.default_rng(0))
    program.model.eval()
    batch = torch.randint(256, (4, 13), generator=torch.Generator().manual_seed(1))
    assert torch.equal(after.loss(program.model, batch), program.loss(program.model, batch))


@pytest.mark.parametrize("file", PROGRAM_FAULTS)
def test_what_it_says_changed_is_a_change(file: str) -> None:
    fault = fault_in(file)()
    if (tell := getattr(fault, "changes", None)) is None:
        return
    told = tell(small_program(), 7)
    assert told
    assert all(isinstance(one, Change) and one.step == 7 for one in told)
    assert all(one.before != one.after for one in told)
    assert graded(file, 0.0).changes(small_program(), 7) == ()  # type: ignore[attr-defined]
