"""No address outlives its tensor, and none is read of what holds no elements in order."""

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from foreshock.attachment import site_of
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site, Values
from foreshock.fused import passes
from foreshock.fused.library import library
from foreshock.norms import sizes
from foreshock.observation import Observation
from foreshock.sampling import Sampling
from foreshock.signals.activation_norm import ActivationNormSignal
from foreshock.signals.activations import ActivationsSignal
from foreshock.signals.output_logits import OutputLogitsSignal
from foreshock.update import trained_parameters

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fused() -> None:
    if library().functions is None:
        pytest.skip(library().said)


class Wrapper(torch.Tensor):
    """Holds nothing itself: its elements are another tensor's."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        def bare(one: Any) -> Any:
            if isinstance(one, list | tuple):
                return type(one)(map(bare, one))
            return one.inner if isinstance(one, Wrapper) else one

        found = function(*map(bare, args), **(kwargs or {}))
        return cls(found) if function is torch.ops.aten.detach.default else found


def given_back() -> torch.Tensor:
    one = torch.ones(1000)
    one.untyped_storage().resize_(0)
    return one


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4)


UNFIT: dict[str, Callable[[], torch.Tensor]] = {
    "wrapper subclass": lambda: Wrapper(torch.ones(4)),
    "subclass": lambda: torch.ones(4).as_subclass(type("Mine", (torch.Tensor,), {})),
    "zeros without memory": lambda: torch._efficientzerotensor((10,)),
    "memory given back": given_back,
    "fake": fake,
    "meta": lambda: torch.ones(4, device="meta"),
    "fp64": lambda: torch.ones(4, dtype=torch.float64),
    "fp16": lambda: torch.ones(4, dtype=torch.float16),
    "int": lambda: torch.ones(4, dtype=torch.int32),
    "complex": lambda: torch.ones(4, dtype=torch.complex64),
    "negated": lambda: torch._neg_view(torch.ones(4)),
    "negated imaginary part": lambda: torch.ones(1, dtype=torch.complex64).conj().imag,
    "expanded": lambda: torch.ones(1).expand(4),
    "transposed": lambda: torch.ones(4, 3).t(),
    "every other": lambda: torch.ones(8)[::2],
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", UNFIT)
def test_what_cannot_be_visited_is_not(kind: str) -> None:
    one = UNFIT[kind]()
    assert passes.address(one) is None and passes.size_and_peak(one) is None
    assert passes.entries([torch.ones(3), one]) is None and passes.logits(one, 0, 1) is None
    assert not passes.gather(np.zeros(0, np.int64), np.zeros((0, 5), np.int64), one)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_within_a_transform_there_is_no_memory(transform: Any) -> None:
    found: list[Any] = []

    def look(one: torch.Tensor) -> torch.Tensor:
        found.append(passes.entries([one]))
        return one.sum()

    transform(look)(torch.ones(3))
    assert found == [None]


@pytest.mark.parametrize("kind", ["wrapper subclass", "zeros without memory", "subclass"])
def test_their_norms_are_right_all_the_same(kind: str) -> None:
    one = UNFIT[kind]()
    true = 0.0 if kind == "zeros without memory" else 2.0
    assert sizes([one, torch.ones(9)], CPU).norms.tolist() == pytest.approx([true, 3.0])


def moment(step: int = 1) -> Moment:
    return Moment(step=step, loss=None, grad_norms=None, grad_norm=None, lr=0.0)


class Optimizer:
    def __init__(self) -> None:
        self.state: dict[Any, dict[str, Any]] = {}


def sampling_of(*parameters: nn.Parameter, optimizer: Any = None) -> Sampling:
    named = tuple((f"w{i}", one) for i, one in enumerate(parameters))
    return Sampling(Site(model=None, optimizer=optimizer or Optimizer(), parameters=named))


def first(values: torch.Tensor, num: int) -> list[float]:
    return values.reshape(-1)[:num].tolist()


def test_a_sparse_gradient_after_none() -> None:
    weight = nn.Parameter(torch.zeros(4))
    sampling = sampling_of(weight)
    assert first(sampling.gradients(moment()), 4) == [0, 0, 0, 0]
    weight.grad = torch.tensor([0.0, 7.0, 0.0, 9.0]).to_sparse()
    assert first(sampling.gradients(moment()), 4) == [0, 7, 0, 9]
    weight.grad = None
    assert first(sampling.gradients(moment()), 4) == [0, 0, 0, 0]


def numbers() -> torch.Tensor:
    return torch.arange(6.0).view(2, 3)


SAME_ADDRESS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float]]] = {
    # Each gets [0 .. 5] and gives another tensor that begins where it does.
    "strides": (lambda one: one.as_strided((2, 3), (1, 2)), [0, 2, 4, 1, 3, 5]),
    "expanded": (lambda one: one.as_strided((2, 3), (0, 0)), [0] * 6),
}


@pytest.mark.parametrize("kind", SAME_ADDRESS)
def test_another_gradient_at_the_same_address(kind: str) -> None:
    weight, (other, true) = nn.Parameter(torch.zeros(2, 3)), SAME_ADDRESS[kind]
    sampling = sampling_of(weight)
    weight.grad = base = numbers()
    assert first(sampling.gradients(moment()), 6) == list(range(6))
    weight.grad = other(base)
    assert weight.grad.data_ptr() == base.data_ptr()
    assert first(sampling.gradients(moment()), 6) == true


@pytest.mark.parametrize("kind", SAME_ADDRESS)
def test_other_moments_and_weights_at_the_same_address(kind: str) -> None:
    optimizer, (other, true) = Optimizer(), SAME_ADDRESS[kind]
    weight = nn.Parameter(numbers())
    base = numbers()
    optimizer.state[weight] = {"exp_avg": base}
    sampling = sampling_of(weight, optimizer=optimizer)
    for change, wanted in ((lambda one: one, list(range(6))), (other, true), (other, true)):
        optimizer.state[weight] = {"exp_avg": change(base)}
        weight.data = change(weight.data.as_strided((2, 3), (3, 1)))
        found = sampling.state(now := moment(), ("exp_avg",))
        assert found is not None and first(found, 6) == wanted
        assert first(sampling.weights_after(now), 6) == wanted


def test_a_copy_of_a_moment_out_of_order_is_not_kept() -> None:
    optimizer, weight = Optimizer(), nn.Parameter(torch.zeros(2, 3))
    turned = torch.arange(6.0).view(3, 2).t()
    optimizer.state[weight] = {"exp_avg": turned}
    sampling = sampling_of(weight, optimizer=optimizer)
    with passes.unfused():
        assert first(sampling.state(moment(), ("exp_avg",)), 6) == [0, 2, 4, 1, 3, 5]
        turned.data = turned.t().reshape(2, 3)
        assert turned.is_contiguous()
        turned.fill_(8.0)
        assert first(sampling.state(moment(), ("exp_avg",)), 6) == [8] * 6


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("way")
def test_another_dtype_at_the_same_address() -> None:
    weight = nn.Parameter(torch.ones(8))
    sampling = sampling_of(weight)
    for _ in range(2):
        assert first(sampling.weights_after(moment()), 8) == [1] * 8
        whole = weight.data
        weight.data = whole.view(torch.bfloat16)[:8].fill_(2.0)
        assert weight.data_ptr() == whole.data_ptr()
        assert first(sampling.weights_after(moment()), 8) == [2] * 8
        weight.data = whole.fill_(1.0)


def test_a_moment_that_is_a_subclass_is_asked_anew_each_time() -> None:
    optimizer, weight = Optimizer(), nn.Parameter(torch.zeros(4))
    wrapper = Wrapper(torch.zeros(4))
    optimizer.state[weight] = {"exp_avg": wrapper}
    sampling = sampling_of(weight, optimizer=optimizer)
    for value in (1.0, 5.0):
        wrapper.inner = torch.full((4,), value)
        assert first(sampling.state(moment(), ("exp_avg",)), 4) == [value] * 4


def test_state_that_is_replaced_cleared_and_moved_to_another_parameter() -> None:
    optimizer, weights = Optimizer(), [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    sampling = sampling_of(*weights, optimizer=optimizer)

    def seen() -> Any:
        found = sampling.state(moment(), ("exp_avg",))
        return None if found is None else found[:, 0].tolist()

    assert seen() is None
    optimizer.state[weights[0]] = {"exp_avg": torch.full((2,), 3.0)}
    assert seen() == [3, 0]
    optimizer.state[weights[0]]["exp_avg"] = torch.full((2,), 4.0)
    assert seen() == [4, 0]
    optimizer.state = {weights[1]: optimizer.state[weights[0]]}  # the very same dictionary
    assert seen() == [0, 4]
    optimizer.state.clear()
    assert seen() is None


def test_a_complex_gradient_that_is_conjugated_only_in_name() -> None:
    weight = nn.Parameter(torch.zeros(300, dtype=torch.complex64))
    sampling = sampling_of(weight)
    weight.grad = torch.complex(torch.ones(300), torch.full((300,), 2.0)).conj()
    assert weight.grad.is_conj()
    for _ in range(3):
        assert first(sampling.gradients(moment()), 600) == [1, -2] * 300


class Norm(nn.LayerNorm):
    turned = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return turned(super().forward(turned(x)) * 1e6)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Of other strides: what the fused passes do not visit."""
    return x.t().contiguous().t() if Norm.turned else x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.norm, self.head = Norm(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(turned(x)))


SEEN: tuple[Signal, ...] = (
    ActivationsSignal(),
    ActivationNormSignal(),
    OutputLogitsSignal(exact=True),
)


def observed(run: Callable[[Model], None], signals: tuple[Signal, ...] = SEEN) -> dict[str, float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    site = site_of(model, optimizer, trained_parameters(model, optimizer))
    observation = Observation(signals, site, 0)
    run(model)
    now = moment()
    observation.before_update(now)
    observation.after_update(now, torch.tensor(True))
    (row,) = observation.read(drain=True)
    observation.detach()
    return dict(zip(observation.series, row.values.tolist(), strict=True))


def agree(run: Callable[[Model], None]) -> None:
    fused = observed(run)
    with passes.unfused():
        assert fused == pytest.approx(observed(run), rel=1e-6)
    assert all(np.isfinite(list(fused.values())))


def test_threads_and_recomputation_count_each_forward_once() -> None:
    def run(model: Model) -> None:
        inputs = [torch.randn(6, 8) * (1 + i) for i in range(8)]

        def work(x: torch.Tensor) -> None:
            for _ in range(5):
                model(x).sum().backward()

        workers = [threading.Thread(target=work, args=(x,)) for x in inputs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    agree(run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_forwards_of_which_some_are_not_fused(dtype: torch.dtype) -> None:
    def run(model: Model) -> None:
        # Sizes that fp16 cannot hold: no number may pass through the default dtype.
        for scale, Norm.turned in ((1e-9, False), (1e9, True), (3e9, False)):
            model(torch.arange(48.0).view(6, 8) * scale)

    def run_under(model: Model) -> None:
        run(model)
        torch.set_default_dtype(dtype)

    found: list[dict[str, float]] = []
    for way in (nullcontext, passes.unfused):
        try:
            with way():
                found.append(observed(run_under))
        finally:
            torch.set_default_dtype(torch.float32)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert np.isfinite(list(found[0].values())).all()


class _Attached(Attached):
    series = ("a/x", "a/y", "a/z")

    def __init__(self, values: Any) -> None:
        self._values = values
        self.reductions = ()

    def measure(self, moment: Moment) -> Any:
        return self._values

    def finish(self, partials: Values, committed: bool) -> Values:
        return partials


class Given(Signal):
    name, unit, phase, passes = "given", "1", Phase.GRADIENT, "none"
    exactness = Exactness.EXACT

    def __init__(self, values: Any) -> None:
        super().__init__()
        object.__setattr__(self, "values", values)

    def attach(self, site: Site) -> Attached:
        return _Attached(self.values)


WANTED = [1.5, 1e300, float("nan")]
FORMS: dict[str, Callable[[], Any]] = {
    "array": lambda: np.array(WANTED),
    "array of rows": lambda: np.array([WANTED]),
    "reversed array": lambda: np.array(WANTED[::-1])[::-1],
    "reversed array in fp32": lambda: np.float32([np.nan, np.inf, 1.5])[::-1],
    "read-only array": lambda: np.broadcast_to(np.array(WANTED), (3,)),
    "tensor": lambda: torch.tensor(WANTED, dtype=torch.float64),
    "tensor with a gradient": lambda: torch.tensor(WANTED, dtype=torch.float64, requires_grad=True),
    "list": lambda: [1.5, torch.tensor(1e300, dtype=torch.float64), float("nan")],
}


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_partials_of_every_form_make_the_same_row(form: str, joined: bool) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    site = site_of(model, optimizer, trained_parameters(model, optimizer))
    join = (lambda packed, kinds: packed) if joined else None
    observation = Observation((Given(FORMS[form]()),), site, 0, join=join)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for commit in (torch.tensor(True), torch.tensor(0.0)):
            observation.before_update(now := moment())
            observation.after_update(now, commit)
            (row,) = observation.read(drain=True)
            assert row.committed is bool(commit) and row.values.dtype == np.float32
            assert np.array_equal(row.values, np.float32([1.5, np.inf, np.nan]), equal_nan=True)
