"""Each training forward is seen exactly once, whatever runs it; and nothing else changes."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

from foreshock.taps import Tap, paused, recompile

CPU = torch.device("cpu")
WIDTH, DEPTH = 16, 3
Wrap = Callable[[nn.Module, torch.Tensor], Any]


@pytest.fixture(autouse=True)
def one_thread_and_no_compiled_code() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    recompile()


def eager(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def non_reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False)


def without_early_stop(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False, early_stop=False)


def reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=True)


def reentrant_in_non_reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: checkpoint(block, y, use_reentrant=True), x, use_reentrant=False)


def non_reentrant_twice(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: checkpoint(block, y, use_reentrant=False), x, use_reentrant=False)


def non_reentrant_in_reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: checkpoint(block, y, use_reentrant=False), x, use_reentrant=True)


def offloaded_in_non_reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def offloaded(y: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():  # whose hooks hide those of the checkpoint
            z = block(y)
        return z + 0 * z.sin()  # saves z with the checkpoint, which must run the block again

    return checkpoint(offloaded, x, use_reentrant=False)


WRAPS = (
    eager, non_reentrant, without_early_stop, reentrant, non_reentrant_twice,
    reentrant_in_non_reentrant, non_reentrant_in_reentrant, offloaded_in_non_reentrant,
)  # fmt: skip
every_wrap = pytest.mark.parametrize("wrap", WRAPS, ids=lambda wrap: wrap.__name__)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, wrap: Wrap) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 5)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.wrap(block, x)
        return self.head(x)


class Run:
    """Training of the model; what taps on blocks, on their norms' inputs and on the head saw."""

    def __init__(self, wrap: Wrap, backend: str | None = None, *, tapped: bool = True) -> None:
        torch.manual_seed(0)
        recompile()
        self.model = Model(wrap)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.seen: list[tuple[str, float]] = []
        self.taps: list[Tap] = []
        if tapped:
            self.tap()
        compiled = {} if backend is None else {"backend": backend}
        self.forward = torch.compile(self.model, **compiled) if backend else self.model

    def tap(self) -> None:
        for place, block in enumerate(self.model.blocks):
            self._tap(f"block {place}", block, "output")
            self._tap(f"norm {place}", block.norm, "input")
        self._tap("head", self.model.head, "output")

    def _tap(self, name: str, module: nn.Module, where: Any) -> None:
        def see(value: torch.Tensor) -> None:
            assert not value.requires_grad and not torch.is_grad_enabled()
            self.seen.append((name, float(value.double().norm())))

        self.taps.append(Tap(module, see, where=where, device=CPU))

    def close(self) -> None:
        for tap in self.taps:
            tap.close()

    def step(self, number: int) -> list[tuple[str, float]]:
        """One training step; what was seen in it, by name."""
        self.seen.clear()
        torch.manual_seed(number)
        x = torch.randn(8, 4, WIDTH, requires_grad=True)
        self.forward(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sorted(self.seen)

    def weights(self) -> torch.Tensor:
        return torch.cat([one.detach().flatten() for one in self.model.parameters()])


def expected(number_of_steps: int) -> list[list[tuple[str, float]]]:
    """By plain hooks, eager and without checkpoints."""
    run = Run(eager, tapped=False)
    found: list[tuple[str, float]] = []

    def keep(name: str, value: torch.Tensor) -> None:
        found.append((name, float(value.detach().double().norm())))

    for place, block in enumerate(run.model.blocks):
        block.register_forward_hook(lambda _m, _i, out, place=place: keep(f"block {place}", out))
        block.norm.register_forward_pre_hook(lambda _m, i, place=place: keep(f"norm {place}", i[0]))
    run.model.head.register_forward_hook(lambda _m, _i, out: keep("head", out))
    steps = []
    for number in range(number_of_steps):
        found.clear()
        run.step(number)
        steps.append(sorted(found))
    return steps


NAMES = sorted(
    ["head", *(f"{what} {place}" for what in ("block", "norm") for place in range(DEPTH))]
)


def check(wrap: Wrap, backend: str | None, *, steps: int, rel: float = 0.0) -> None:
    """Seen once and right; and training bit-identical without."""
    plain = Run(wrap, backend, tapped=False)
    for number in range(steps):
        plain.step(number)
    weights = plain.weights()
    true = expected(steps)
    tapped = Run(wrap, backend)
    for number in range(steps):
        found = tapped.step(number)
        assert [name for name, _ in found] == NAMES
        values, right = ([value for _, value in pairs] for pairs in (found, true[number]))
        assert values == pytest.approx(right, rel=rel, abs=0)
    assert torch.equal(tapped.weights(), weights)
    tapped.close()


@every_wrap
def test_eager(wrap: Wrap) -> None:
    check(wrap, None, steps=20)


slow = pytest.mark.slow
AOT = pytest.param("aot_eager", marks=slow)


@pytest.mark.parametrize(
    "wrap",
    [eager, *(pytest.param(wrap, marks=slow) for wrap in WRAPS[1:])],
    ids=[wrap.__name__ for wrap in WRAPS],
)
def test_compiled_without_an_inductor(wrap: Wrap) -> None:
    check(wrap, "aot_eager", steps=20, rel=1e-3)


@slow
@pytest.mark.parametrize("wrap", [eager, non_reentrant, reentrant], ids=lambda one: one.__name__)
def test_compiled(wrap: Wrap) -> None:
    """Dropout of compiled code draws otherwise than eager code: counted, not compared."""
    plain = Run(wrap, "inductor", tapped=False)
    for number in range(20):
        plain.step(number)
    tapped = Run(wrap, "inductor")
    for number in range(20):
        assert [name for name, _ in tapped.step(number)] == NAMES
    assert torch.equal(tapped.weights(), plain.weights())
    tapped.close()


@slow
@pytest.mark.parametrize("wrap", [eager, non_reentrant, reentrant], ids=lambda one: one.__name__)
def test_compiled_blocks_in_an_eager_model(wrap: Wrap) -> None:
    weights = []
    true = expected(5)
    for tapped in (False, True):
        run = Run(wrap, tapped=tapped)
        for block in run.model.blocks:
            block.compile(backend="aot_eager")
        for number in range(5):
            found = run.step(number)
            if tapped:
                assert [name for name, _ in found] == NAMES
                right = [value for _, value in true[number]]
                assert [value for _, value in found] == pytest.approx(right, rel=1e-3)
        run.close()
        weights.append(run.weights())
    assert torch.equal(*weights)


@slow
def test_a_model_of_the_same_class_that_is_not_watched() -> None:
    dynamo: Any = importlib.import_module("torch._dynamo.config")
    with dynamo.patch(skip_nnmodule_hook_guards=False):
        other, watched = Run(eager, "aot_eager", tapped=False), Run(eager, "aot_eager")
        for number in range(3):
            assert other.step(number) == []
            assert [name for name, _ in watched.step(number)] == NAMES
        watched.close()


@slow
def test_taps_that_come_and_go_after_compiling() -> None:
    run = Run(eager, "aot_eager", tapped=False)
    run.step(0)
    run.tap()
    recompile()
    assert [name for name, _ in run.step(1)] == NAMES
    run.close()
    recompile()
    assert run.step(2) == []


@slow
def test_a_closed_tap_sees_nothing_even_in_code_that_still_calls_it() -> None:
    run = Run(eager, "aot_eager")
    run.step(0)
    run.close()  # and not compiled anew
    assert run.step(1) == []


def forward(run: Run) -> None:
    run.forward(torch.randn(2, 3, WIDTH))


@pytest.mark.parametrize("backend", [None, AOT])
def test_what_is_no_training_is_not_seen(backend: str | None) -> None:
    run = Run(eager, backend)
    run.step(0)
    run.seen.clear()
    with torch.no_grad():
        forward(run)
    with torch.inference_mode():
        forward(run)
    run.model.eval()
    forward(run)
    assert run.seen == []
    run.model.train()
    forward(run)
    assert [name for name, _ in sorted(run.seen)] == NAMES
    run.close()


@pytest.mark.parametrize("wrap", [eager, non_reentrant, reentrant], ids=lambda one: one.__name__)
@pytest.mark.parametrize("backend", [None, AOT])
def test_paused_forwards_are_not_seen(backend: str | None, wrap: Wrap) -> None:
    run = Run(wrap, backend)
    with paused(), paused():
        run.step(0)
    assert run.seen == []
    with pytest.raises(ZeroDivisionError), paused():
        raise ZeroDivisionError
    assert [name for name, _ in run.step(1)] == NAMES
    run.close()


def dictionaries(module: nn.Module) -> dict[str, Any]:
    """Everything that a module keeps, and its class."""
    found = {name: value for name, value in vars(module).items() if name != "_modules"}
    copied = {k: list(v) if isinstance(v, dict) else v for k, v in found.items()}
    return copied | {"class": type(module), "forward": "forward" in vars(module)}


@pytest.mark.parametrize("backend", [None, AOT])
def test_closing_leaves_every_module_as_it_was(backend: str | None) -> None:
    run = Run(eager, backend, tapped=False)
    others = [run.model.head.register_forward_hook(lambda *_: None)]
    before = [dictionaries(module) for module in run.model.modules()]
    run.tap()
    assert [dictionaries(module) for module in run.model.modules()] != before
    run.step(0)
    run.close()
    run.close()
    assert [dictionaries(module) for module in run.model.modules()] == before
    assert len(run.model.head._forward_hooks) == len(others)


def test_forwards_with_gradients_that_see_no_backward_count_too() -> None:
    run = Run(non_reentrant)
    forward(run)
    forward(run)
    assert len(run.seen) == 2 * len(NAMES)
    run.close()


def test_a_module_called_twice_in_a_forward_counts_twice() -> None:
    layer, seen = nn.Linear(4, 4), []
    tap = Tap(layer, seen.append, device=CPU)
    layer(layer(torch.ones(2, 4))).sum().backward()
    assert len(seen) == 2 and not torch.equal(*seen)
    tap.close()


def test_two_taps_on_one_module_see_the_same() -> None:
    layer, one, other = nn.Linear(4, 4), [], []
    taps = [Tap(layer, seen.append, device=CPU) for seen in (one, other)]
    layer(torch.ones(2, 4))
    taps[0].close()
    layer(torch.ones(2, 4))
    taps[1].close()
    layer(torch.ones(2, 4))
    assert (len(one), len(other)) == (1, 2)


@pytest.mark.parametrize("wrap", [non_reentrant, reentrant], ids=lambda one: one.__name__)
def test_a_backward_that_runs_twice_counts_the_forward_once(wrap: Wrap) -> None:
    run = Run(wrap)
    x = torch.randn(2, 3, WIDTH, requires_grad=True)
    loss = run.forward(x).square().mean()
    if wrap is reentrant:  # which computes again in each: its only gradients are of that pass
        loss.backward()
    else:
        loss.backward(retain_graph=True)
        loss.backward()
    assert [name for name, _ in sorted(run.seen)] == NAMES
    run.close()


def test_gradients_of_the_input_only() -> None:
    run = Run(non_reentrant)
    x = torch.randn(2, 3, WIDTH, requires_grad=True)
    torch.autograd.grad(run.forward(x).sum(), x)
    assert [name for name, _ in sorted(run.seen)] == NAMES
    run.close()
