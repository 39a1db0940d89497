"""Where samples lie, and that they are of now: whatever the layout, the storage, the writer."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.signal import Moment, Site
from foreshock.fused.passes import unfused
from foreshock.sampling import Sampling

pytestmark = pytest.mark.usefixtures("way")


def moment(step: int = 1) -> Moment:
    return Moment(step=step, loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def sampling_of(*tensors: torch.Tensor, optimizer: object = None) -> Sampling:
    named = tuple((f"w{i}", one) for i, one in enumerate(tensors))
    return Sampling(Site(model=None, optimizer=optimizer, parameters=named))


def parts(sampling: Sampling, values: torch.Tensor) -> list[torch.Tensor]:
    """The sample of each parameter, without padding, `[N]` each."""
    found, at = [], 0
    for count in sampling.num_sampled.int().tolist():
        rows = -(-count // 512)
        found.append(values[at : at + rows].reshape(-1)[:count].clone())
        at += rows
    assert at == len(values)
    return found


def places_of(shape: tuple[int, ...]) -> torch.Tensor:
    """Flat places that are sampled in a tensor of this shape: it holds its own places."""
    numbered = nn.Parameter(torch.arange(math.prod(shape), dtype=torch.float64).view(shape))
    sampling = sampling_of(numbered)
    return parts(sampling, sampling.weights_before(moment()))[0].long()


SHAPES = [
    (512, 512), (256, 384), (1000, 1000), (4096, 3), (4097, 1), (5000,), (37, 129), (64, 3, 7, 7),
    (2, 100_003), (100_003, 2), (8192, 320), (1, 5000), (4093,), (641, 17),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_places_are_distinct_and_spread_over_rows_and_columns(shape: tuple[int, ...]) -> None:
    numel, width = math.prod(shape), math.prod(shape[1:])
    places = places_of(shape)
    assert len(places.unique()) == len(places)
    assert places.min() >= 0 and places.max() < numel
    if numel <= 4096:
        assert len(places) == numel
        return
    assert min(numel, 1000) / 2 < len(places) <= 2 * 4096
    rows, columns = (places // width).unique(), (places % width).unique()
    runs = 1 + int((places.diff() != 1).sum())
    assert len(rows) >= 0.9 * min(shape[0], runs)
    assert len(columns) >= 0.6 * min(width, runs)
    gaps = torch.cat([places, torch.tensor([numel])]).diff()
    assert gaps.max() <= 2 * numel / runs + 16


@pytest.mark.parametrize("shape", SHAPES)
def test_of_equal_elements_every_estimate_is_exact(shape: tuple[int, ...]) -> None:
    whole = nn.Parameter(torch.full(shape, -0.25))
    sampling = sampling_of(whole)
    values = sampling.weights_before(moment())
    numel = math.prod(shape)
    assert sampling.norms(values).item() == pytest.approx(0.25 * math.sqrt(numel), rel=1e-6)
    assert sampling.totals(values).item() == pytest.approx(-0.25 * numel, rel=1e-6)
    assert sampling.largest(values).item() == 0.25
    assert sampling.num_nonzero(values).item() == sampling.num_sampled.item()
    assert (sampling.num_sampled * sampling.scale).item() == pytest.approx(numel)


def test_estimates_are_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = nn.Parameter(torch.randn(600, 600, generator=generator).abs())
    sampling = sampling_of(whole)
    values = sampling.weights_before(moment())
    true = whole.detach().double()
    assert sampling.norms(values).item() == pytest.approx(true.norm().item(), rel=0.04)
    assert sampling.totals(values).item() == pytest.approx(true.sum().item(), rel=0.04)
    assert 0.7 * true.max() < sampling.largest(values).item() <= true.max()


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e-12, 1.0, 1e12, 1e17, 1e20, 1e35])
def test_norms_over_the_whole_range(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(40, 50, generator=generator) * scale
    one[3] = 0
    small = nn.Parameter(one)
    other = nn.Parameter(torch.full((3,), 2.0))
    sampling = sampling_of(small, other, nn.Parameter(torch.zeros(600)))
    found = sampling.norms(sampling.weights_before(moment()))
    true = [one.double().norm().item(), math.sqrt(12), 0.0]
    assert found.tolist() == pytest.approx(true, rel=1e-6, abs=0)


def test_totals_that_fp32_cannot_hold() -> None:
    sampling = sampling_of(nn.Parameter(torch.full((600,), 3e38)))
    assert sampling.totals(sampling.weights_before(moment())).item() == pytest.approx(1.8e41)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 511, 512, 599])
def test_what_is_not_finite_shows_in_its_own_tensor_only(bad: float, place: int) -> None:
    broken = torch.ones(600)
    broken[place] = bad
    sampling = sampling_of(*map(nn.Parameter, (torch.ones(700), broken, torch.ones(5))))
    values = sampling.weights_before(moment())
    for found in (sampling.norms(values), sampling.largest(values), sampling.totals(values)):
        assert torch.isfinite(found).tolist() == [True, False, True]
    assert sampling.num_nonzero(values).tolist() == [700, 600, 5]


AWKWARD: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.zeros(0, 7),
    "0-dim": lambda: torch.tensor(3.0),
    "one": lambda: torch.randn(1),
    "transposed": lambda: torch.randn(90, 100).T,
    "transposed and small": lambda: torch.randn(9, 10).T,
    "channels last": lambda: torch.randn(32, 16, 5, 5).to(memory_format=torch.channels_last),
    "strided": lambda: torch.randn(300, 80)[:, ::2],
    "expanded": lambda: torch.randn(1, 70).expand(90, 70),
    "offset": lambda: torch.randn(20_000)[137:],
    "fp64": lambda: torch.randn(99, 77).double(),
    "fp16": lambda: torch.randn(99, 77).half(),
    "complex": lambda: torch.randn(99, 77, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_parameters_are_sampled_at_the_places_of_a_plain_one(name: str) -> None:
    torch.manual_seed(0)
    whole = AWKWARD[name]()
    real = torch.view_as_real(whole) if whole.is_complex() else whole
    plain = nn.Parameter(real.clone(memory_format=torch.contiguous_format))
    first, second = nn.Parameter(whole), plain
    if name == "expanded":  # no parameter may be: its data may
        first.data = whole
    one, other = sampling_of(first), sampling_of(second)
    for number in (1, 2, 3):
        found, expected = (
            parts(sampling, sampling.weights_before(moment(number)))[0] for sampling in (one, other)
        )
        assert torch.equal(found.double(), expected.double())
        assert len(found) == min(real.numel(), len(found)) and (len(found) or not real.numel())
        if name != "expanded":
            with torch.no_grad():
                first.mul_(2), second.mul_(2)
    first.grad = whole.clone()
    second.grad = real.clone()
    gradients = [parts(one, s.gradients(moment()))[0].double() for s in (one, other)]
    assert torch.equal(*gradients)


def test_gradients_that_lie_otherwise_than_their_weights() -> None:
    parameter = nn.Parameter(torch.randn(90, 100))
    sampling = sampling_of(parameter)
    parameter.grad = parameter.detach().T.contiguous().T
    assert not parameter.grad.is_contiguous()
    now = moment()
    assert torch.equal(sampling.gradients(now), sampling.weights_before(now))


def test_sparse_gradients_and_moments_are_sampled_as_dense_ones() -> None:
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(700, 12, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sampling = sampling_of(model.weight, optimizer=optimizer)
        for step in (1, 2):
            optimizer.zero_grad()
            model(torch.arange(0, 700, 2) // step).square().sum().backward()
            now = moment(step)
            gradient = sampling.gradients(now).clone()
            optimizer.step()
            momentum = sampling.state(now, ("exp_avg", "momentum_buffer"))
            assert momentum is not None
            found.append((gradient, momentum.clone()))
    for (gradient, momentum), (dense, dense_momentum) in zip(found[:2], found[2:], strict=True):
        assert gradient.any()
        torch.testing.assert_close(gradient, dense)
        torch.testing.assert_close(momentum, dense_momentum)


def test_no_gradient_is_zeros_also_after_there_was_one() -> None:
    first, second = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(5000))
    sampling = sampling_of(first, second)
    first.grad, second.grad = torch.ones(6), torch.ones(5000)
    assert all(part.all() for part in parts(sampling, sampling.gradients(moment())))
    second.grad = None
    one, other = parts(sampling, sampling.gradients(moment()))
    assert one.all() and not other.any()


def updated(parameter: nn.Parameter, optimizer: object = None) -> Iterator[tuple[Sampling, float]]:
    """Steps of plain subtraction: yields before each, then checks that just it was seen."""
    sampling, step = sampling_of(parameter, optimizer=optimizer), 0
    while True:
        step += 1
        now = moment(step)
        yield sampling, step
        before = sampling.weights_before(now).clone()
        with torch.no_grad():
            parameter.sub_(0.25 * step)
        after = sampling.weights_after(now)
        (moved,) = parts(sampling, after - sampling.weights_before(now))
        assert torch.equal(sampling.weights_before(now), before)
        assert moved.tolist() == [-0.25 * step] * len(moved)


def swap_for_another(parameter: nn.Parameter) -> None:
    parameter.data = torch.full_like(parameter, 64.0)


def swap_for_one_that_lies_otherwise(parameter: nn.Parameter) -> None:
    parameter.data = torch.full((parameter.shape[1], parameter.shape[0]), 16.0).T


def load(parameter: nn.Parameter) -> None:
    holder = nn.ParameterList([parameter])
    holder.load_state_dict({"0": torch.full_like(parameter, 8.0)})


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "nothing": lambda parameter: None,
    "add_": lambda parameter: parameter.add_(128.0),
    "copy_": lambda parameter: parameter.copy_(torch.zeros_like(parameter)),
    "foreach": lambda parameter: torch._foreach_mul_([parameter], 2.0),
    "one element": lambda parameter: parameter[0, 0].add_(1.0),
    "load_state_dict": load,
    "another storage": swap_for_another,
    "another layout": swap_for_one_that_lies_otherwise,
}


@pytest.mark.parametrize("shape", [(40, 50), (300, 200)])
@pytest.mark.parametrize("write", WRITES)
def test_what_others_write_between_steps_is_not_taken_for_the_update(
    write: str, shape: tuple[int, int]
) -> None:
    parameter = nn.Parameter(torch.zeros(shape))
    steps = updated(parameter)
    for _ in range(4):
        next(steps)
        with torch.no_grad():
            WRITES[write](parameter)


def test_weights_are_read_once_a_step_while_nobody_else_writes() -> None:
    parameter = nn.Parameter(torch.zeros(300, 200))
    steps = updated(parameter)
    sampling, _ = next(steps)
    taken = []
    take = sampling._kept
    sampling._kept = lambda name, tensors: taken.append(name) or take(name, tensors)
    with unfused():
        next(steps), next(steps), next(steps)
    assert taken == ["weights before", *["weights after"] * 3]


def test_steps_in_between_that_are_not_measured() -> None:
    parameter = nn.Parameter(torch.zeros(300, 200))
    steps = updated(parameter)
    for _ in range(3):
        next(steps)
        with torch.no_grad():
            parameter.sub_(0.5)  # steps that nobody looks at


def test_moments_that_were_replaced_by_loading_a_state() -> None:
    parameter = nn.Parameter(torch.randn(300, 200))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    sampling = sampling_of(parameter, optimizer=optimizer)
    assert sampling.state(moment(), ("exp_avg",)) is None

    def step(gradient: float) -> torch.Tensor:
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
        found = sampling.state(moment(), ("exp_avg",))
        assert found is not None
        (part,) = parts(sampling, found)
        torch.testing.assert_close(part, torch.full_like(part, float(exp_avg()[0, 0])))
        return part

    def exp_avg() -> torch.Tensor:
        return optimizer.state[parameter]["exp_avg"]

    step(1.0), step(2.0)
    state = optimizer.state_dict()
    saved = {
        **state,
        "state": {0: {k: v.clone() for k, v in state["state"][0].items()}},
    }
    before = exp_avg()
    kept = step(-7.0)
    optimizer.load_state_dict(saved)
    assert exp_avg() is not before
    assert torch.equal(step(-7.0), kept)
    optimizer.state[parameter]["exp_avg"] = torch.zeros_like(parameter).T.contiguous().T
    step(5.0)


def test_moments_of_parameters_that_have_none_are_zeros() -> None:
    trained, idle = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
    optimizer = torch.optim.Adam([trained, idle], lr=0.1)
    sampling = sampling_of(trained, idle, optimizer=optimizer)
    trained.grad = torch.ones(8)
    optimizer.step()
    found = sampling.state(moment(), ("exp_avg",))
    assert found is not None
    one, other = parts(sampling, found)
    assert one.all() and not other.any()


def test_what_was_sampled_lasts_for_the_moment_and_no_longer() -> None:
    parameter = nn.Parameter(torch.ones(9))
    sampling = sampling_of(parameter)
    now = moment()
    parameter.grad = torch.ones(9)
    assert parts(sampling, sampling.gradients(now))[0].tolist() == [1.0] * 9
    parameter.grad.mul_(5)
    assert parts(sampling, sampling.gradients(now))[0].tolist() == [1.0] * 9
    parameter.grad = None
    assert parts(sampling, sampling.gradients(now))[0].tolist() == [1.0] * 9
    assert parts(sampling, sampling.gradients(moment()))[0].tolist() == [0.0] * 9


def test_factors_are_of_the_gradients_as_they_were_sampled() -> None:
    parameter = nn.Parameter(torch.ones(9))
    parameter.grad = torch.full((9,), 8.0)
    sampling, now = sampling_of(parameter), moment()
    now.true_factor = now.used_factor = 0.5  # under a loss scale of 2
    sampling.gradients(now)
    assert sampling.factors(now) == (0.5, 0.5)
    now.true_factor, now.used_factor = 2.0, 1.0  # then unscaled and halved in memory
    assert sampling.factors(now) == (0.5, 0.25)
    sampling.gradients(now)
    assert sampling.factors(now) == (0.5, 0.25)
    later = moment()
    later.true_factor, later.used_factor = 2.0, 1.0
    sampling.gradients(later)
    assert sampling.factors(later) == (2.0, 1.0)


def test_one_large_element_outside_the_sample_is_not_seen() -> None:
    whole = torch.zeros(600, 600)
    seen = np.zeros(whole.numel(), bool)
    seen[places_of((600, 600)).numpy()] = True
    whole.view(-1)[int(np.flatnonzero(~seen)[0])] = 1e9
    sampling = sampling_of(nn.Parameter(whole))
    assert sampling.largest(sampling.weights_before(moment())).item() == 0


def test_after_time_went_back_no_weights_are_taken_for_those_of_then() -> None:
    weight = nn.Parameter(torch.zeros(300))
    sampling = sampling_of(weight)
    sampling.weights_before(moment(1))
    weight.data.add_(1.0)
    sampling.weights_after(moment(1))
    counted = weight._version
    weight.data.fill_(7.0)  # as a restored part of a DTensor: torch counts no write
    assert weight._version == counted
    sampling.forget()
    assert set(parts(sampling, sampling.weights_before(moment(2)))[0].tolist()) == {7.0}
