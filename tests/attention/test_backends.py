"""The attention back-ends of transformers, FlexAttention, and sharded heads."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from foreshock.attention import graph
from foreshock.attention.tap import AttentionTap
from tests.attention.models import CPU, Fused, reference_logits


def language_model(name: str, implementation: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    grouped = {"num_key_value_heads": 2, "head_dim": 8}
    config = {
        "Llama": lambda: transformers.LlamaConfig(**shape, **grouped),
        "Qwen2": lambda: transformers.Qwen2Config(**shape, **grouped),
        "GPT2": lambda: transformers.GPT2Config(
            vocab_size=64, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0,
        ),
    }[name]()  # fmt: skip
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    ).train()


def attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (path, one) for path, one in model.named_modules() if type(one).__name__[-9:] == "Attention"
    ]


def run(name: str, implementation: str, checkpointed: bool, watched: bool) -> tuple[Tensor, Any]:
    model = language_model(name, implementation)
    if checkpointed:
        model.gradient_checkpointing_enable()
    tap = AttentionTap(attentions(model), CPU, exact_rows=99) if watched else None
    if tap is not None:
        tap.want_exact = True
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (2, 12), generator=generator)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 9:] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(input_ids=tokens, attention_mask=mask, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    if tap is None:
        return weights, None
    assert tap.heads == (4, 4) and tap.num_measured == (3, 3)
    found = tap.status(), tap.read_and_reset(), tap.read_exact()
    tap.close()
    return weights, found


@pytest.mark.parametrize(
    "name",
    ["Llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Qwen2", "GPT2"))],
)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_transformers_back_ends(name: str, checkpointed: bool) -> None:
    maxima = {}
    for implementation, status in (("sdpa", "log-sum-exp"), ("eager", "sampled")):
        plain, _ = run(name, implementation, checkpointed, False)
        watched, (statuses, bounds, exact) = run(name, implementation, checkpointed, True)
        assert torch.equal(plain, watched)
        assert set(statuses.values()) == {status}
        assert exact.certified.all()
        assert (bounds[..., 0] <= exact.maximum + 1e-5).all()
        assert (bounds[..., 1] >= exact.maximum - 1e-5).all()
        maxima[implementation] = exact.maximum
    torch.testing.assert_close(maxima["sdpa"], maxima["eager"], atol=1e-4, rtol=1e-4)


class Flex(Fused):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = self.options["attention"](q, k, v, **self.options["keywords"])
        return result[0] if isinstance(result, tuple) else result


def test_flex_attention_gives_a_natural_log_sum_exp() -> None:
    torch._dynamo.reset()
    module = Flex(
        attention=torch.compile(flex_attention, backend="aot_eager"),
        keywords={"return_aux": AuxRequest(lse=True)},  # on a CPU there is none otherwise
    ).requires_grad_(False)
    tap = AttentionTap([("a", module)], CPU)
    x = torch.randn(2, 20, 16) * 10
    module(x)
    truth = reference_logits(*module.project(x)[:2]).amax((0, 2, 3))
    taken = tap.read_and_reset()[0].double()
    assert (taken[:, 0] <= truth + 1e-3).all() and (taken[:, 1] >= truth - 1e-3).all()
    assert (taken[:, 1] - taken[:, 0] - math.log(20)).abs().max() < 1e-4
    assert tap.status() == {"a": "log-sum-exp"}


def test_flex_attention_without_a_log_sum_exp_says_so_and_runs_as_before() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, backend="aot_eager")
    module = Flex(attention=compiled, keywords={}).requires_grad_(False)
    x = torch.randn(2, 20, 16)
    expected = module(x)
    tap = AttentionTap([("a", module)], CPU)
    assert torch.equal(module(x), expected)
    assert tap.status()["a"].startswith("not observed: inside a compiled graph")


@pytest.mark.parametrize("heads", [2, 1])
def test_the_math_back_end_is_sampled(heads: int) -> None:
    module, x = Fused(heads=heads, is_causal=True), torch.randn(2, 8, 16) * 3
    tap = AttentionTap([("a", module)], CPU, sampled_rows=8)
    with sdpa_kernel(SDPBackend.MATH):
        module(x).sum().backward()
    truth = reference_logits(*module.project(x)[:2], causal=True).amax((0, 2, 3))
    torch.testing.assert_close(
        tap.read_and_reset()[0].double(), truth[:, None].expand(-1, 2), atol=1e-5, rtol=1e-5
    )
    assert tap.status() == {"a": "sampled"}


def test_a_distributed_tensor_is_measured_locally() -> None:
    class Local(Tensor):
        """Stands in for a DTensor: a subclass that holds this rank's part."""

        def to_local(self) -> Tensor:
            return self.as_subclass(Tensor)

    module, x = Fused(is_causal=True), torch.randn(2, 8, 16)
    tap = AttentionTap([("a", module)], CPU)
    query, key, value = module.project(x)
    node = module.attend(query, key, value).grad_fn
    call, lse = graph.read(node)
    tap._taps[0].take_logsumexp(
        call._replace(query=call.query.as_subclass(Local), key=call.key.as_subclass(Local)),
        lse.as_subclass(Local),
    )
    truth = reference_logits(query, key, causal=True).amax((0, 2, 3))
    taken = tap.read_and_reset()[0].double()
    assert (taken[:, 0] <= truth + 1e-5).all() and (taken[:, 1] >= truth - 1e-5).all()
    assert tap.status() == {"a": "log-sum-exp"}


def test_operators_of_the_measurement_are_hidden_from_modes_of_the_program() -> None:
    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    module, x = Fused(is_causal=True), torch.randn(2, 8, 16)

    def seen() -> list[Any]:
        with Counting() as counting:
            module(x)
        return counting.seen

    plain = seen()
    tap = AttentionTap([("a", module)], CPU, exact_rows=4)
    for exact in (False, True):
        tap.want_exact = exact
        assert seen() == plain
    assert tap.num_measured == (2,)
