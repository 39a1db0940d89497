"""Inside compiled graphs: bounds from the operator, the same training, nothing left behind."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from foreshock.attention.tap import AttentionTap
from tests.attention.models import CPU, ByHand, Fused, Net, reference_logits, weights_after

SLOW = pytest.mark.slow
BACKENDS = ["aot_eager", pytest.param("inductor", marks=SLOW)]
CAUSAL = partial(Fused, is_causal=True)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No graphs of other tests; nor cached on disk, where torch 2.13 loses views after a break."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


class Torchs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Breaking(Fused):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().attend(q, k, v)


def whole(net: Net, backend: CompileCounterWithBackend) -> nn.Module:
    return torch.compile(net, backend=backend)


def each_attention(net: Net, backend: CompileCounterWithBackend) -> nn.Module:
    for one in net.attention:
        one.compile(backend=backend)
    return net


def inside_checkpoints(net: Net, backend: CompileCounterWithBackend) -> nn.Module:
    """Attention is compiled, eager checkpointing runs it twice."""
    net.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    return each_attention(net, backend)


def with_checkpoints_inside(net: Net, backend: CompileCounterWithBackend) -> nn.Module:
    net.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    return torch.compile(net, backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("attention", "how", "status"),
    [
        (CAUSAL, whole, "log-sum-exp"),
        (CAUSAL, inside_checkpoints, "log-sum-exp"),
        (CAUSAL, with_checkpoints_inside, "not observed: inside a compiled graph"),
        pytest.param(CAUSAL, each_attention, "log-sum-exp", marks=SLOW),
        pytest.param(
            partial(Fused, attn_mask=torch.ones(9, 9).tril().bool()),
            whole,
            "log-sum-exp",
            marks=SLOW,
        ),
        pytest.param(Breaking, whole, "log-sum-exp", marks=SLOW),
        pytest.param(
            partial(Fused, dropout_p=0.2),
            whole,
            "not observed: inside a compiled graph",
            marks=SLOW,
        ),
        pytest.param(ByHand, whole, "not observed: inside a compiled graph", marks=SLOW),
        pytest.param(Torchs, whole, "not observed: ", marks=SLOW),
    ],
)
def test_training_is_bit_identical(
    attention: Callable[[], nn.Module],
    how: Callable[[Net, CompileCounterWithBackend], nn.Module],
    status: str,
    backend: str,
) -> None:
    frames = []

    def train(watched: bool) -> Tensor:
        torch._dynamo.reset()
        counter = CompileCounterWithBackend(backend)

        def seen(tap: AttentionTap) -> None:
            assert all(one.startswith(status) for one in tap.status().values()), tap.status()
            taken = tap.read_and_reset()
            assert taken.isfinite().all() if status == "log-sum-exp" else (taken == -math.inf).all()

        weights = weights_after(
            lambda: Net(attention, depth=3),
            watched=watched,
            prepare=lambda net: how(net, counter),
            seen=seen,
        )
        frames.append(counter.frame_count)
        return weights

    assert torch.equal(train(False), train(True))
    assert frames[0] == frames[1]  # watching costs no further graph


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounds_hold_and_detaching_compiles_again(backend: str) -> None:
    torch.manual_seed(0)
    module, counter = CAUSAL(), CompileCounterWithBackend(backend)
    tap = AttentionTap([("a", module)], CPU, exact_rows=2)
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for size in (1.0, 20.0, 0.1):
        x = torch.randn(2, 9, 16) * size
        other = torch.randn(2, 9, 16) * size / 2
        for given in (x, other):
            compiled(given).sum().backward()
        truth = torch.stack(
            [
                reference_logits(*module.project(given)[:2], causal=True).amax((0, 2, 3))
                for given in (x, other)
            ]
        ).amax(0)
        taken = tap.read_and_reset()[0].double()
        assert (taken[:, 0] <= truth + 1e-4).all() and (taken[:, 1] >= truth - 1e-4).all()
        assert (taken[:, 1] - taken[:, 0] <= math.log(9) + 1e-4).all()
    tap.want_exact = True
    compiled(x)
    assert not tap.read_exact().certified.any()  # a compiled graph gives bounds only
    tap.read_and_reset()
    graphs = counter.frame_count
    tap.close()
    compiled(x)
    assert counter.frame_count == graphs + 1
    assert (tap.read_and_reset() == -math.inf).all()
    assert not module._forward_hooks and not module._forward_pre_hooks


def test_only_training_counts() -> None:
    net = Net(CAUSAL)
    tap = AttentionTap(net.attentions(), CPU)
    compiled = torch.compile(net, backend="aot_eager")
    tokens = torch.zeros(2, 9, dtype=torch.long)
    for training in (True, False, True, False):
        net.train(training)
        compiled(tokens)
        assert tap.read_and_reset().isfinite().all() == training
        with torch.no_grad():
            compiled(tokens)
        assert (tap.read_and_reset() == -math.inf).all()


def test_layers_that_share_a_graph_go_on_sharing_it() -> None:
    torch.manual_seed(0)
    layers = [CAUSAL() for _ in range(12)]
    tap = AttentionTap([(str(i), one) for i, one in enumerate(layers)], CPU)
    counter = CompileCounterWithBackend("aot_eager")
    for layer in layers:
        layer.compile(backend=counter)
    inputs = [torch.randn(2, 9, 16) * (i + 1) for i in range(12)]
    for layer, x in zip(layers, inputs, strict=True):
        layer(x).sum().backward()
    assert counter.frame_count == 1
    taken = tap.read_and_reset()
    for place, (layer, x) in enumerate(zip(layers, inputs, strict=True)):
        truth = reference_logits(*layer.project(x)[:2], causal=True).amax((0, 2, 3))
        assert (taken[place, :, 0].double() <= truth + 1e-4).all()
        assert (taken[place, :, 1].double() >= truth - 1e-4).all()


def test_watching_after_compiling_is_said_not_to_work() -> None:
    net = Net(CAUSAL)
    compiled = torch.compile(net, backend="aot_eager")
    tokens = torch.zeros(2, 9, dtype=torch.long)
    compiled(tokens)
    tap = AttentionTap(net.attentions(), CPU)
    compiled(tokens)
    assert "watch it before" in tap.status()["attention.0"]
    torch._dynamo.reset()
    compiled(tokens)
    assert set(tap.status().values()) == {"log-sum-exp"}


def test_not_finite_stays_visible() -> None:
    module = CAUSAL()
    tap = AttentionTap([("a", module)], CPU)
    compiled = torch.compile(module, backend="aot_eager")
    x = torch.randn(2, 20, 16)
    x[1, 7] = math.nan
    compiled(x)
    compiled(torch.randn(2, 20, 16))
    assert tap.read_and_reset().isnan().all()
    compiled(torch.randn(2, 20, 16))
    assert tap.read_and_reset().isfinite().all()
