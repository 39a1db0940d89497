"""Every series of every signal against the slow reference, on real training and bad tensors."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.signals.grad_extremes import GradExtremesSignal
from tests.signals.recording import EXACT, OPTIMIZERS, Recording, differences
from tests.signals.sites import CASES, case

VOCABULARY, WIDTH, LENGTH = 64, 32, 16
ENTROPY = "output_entropy/global"
"""A difference of numbers near 1: exact to a few units in the last place of those."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gpt(seed: int = 0, **shape: Any) -> GPT:
    """A model none of whose tensors is too large to be sampled in full."""
    given = {"vocab": VOCABULARY, "width": WIDTH, "depth": 2, "heads": 2, "context": LENGTH}
    model = GPT(GPTConfig(**given | shape), torch.Generator().manual_seed(seed))
    model.train()
    return model


def text(model: GPT, seed: int = 0, *, per_sample: bool = False) -> Callable[[], torch.Tensor]:
    """Losses of a made-up language: tokens follow each other by a rule, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.config.vocab

    def feed() -> torch.Tensor:
        start = torch.randint(vocabulary, (4, 1), generator=generator)
        tokens = (start * torch.arange(1, LENGTH + 2) + start) % vocabulary
        noise = torch.rand(tokens.shape, generator=generator) < 0.1
        tokens = torch.where(noise, torch.zeros_like(tokens), tokens)
        logits = model(tokens[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        losses = losses.view(len(tokens), -1).mean(dim=1)
        return losses if per_sample else losses.mean()

    return feed


def check(measured: dict[str, float], truth: dict[str, float], **options: Any) -> None:
    wrong = differences(measured, truth, **options)
    if ENTROPY in wrong and abs(wrong[ENTROPY][0] - wrong[ENTROPY][1]) < 2e-6:
        del wrong[ENTROPY]
    assert not wrong


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_few_dozen_steps_of_a_small_gpt(name: str) -> None:
    model = gpt()
    recording = Recording(
        model, OPTIMIZERS[name](model.parameters()), text(model, per_sample=True), per_sample=True
    )
    for step in range(1, 31):
        limit = 0.0 if step == 17 else math.inf
        measured, truth = recording.step(micro_steps=1 + (step % 5 == 0), gate_limit=limit)
        check(measured, truth)
        assert recording.skipped[-1] == (step == 17)
    assert measured.keys() == set(recording.observation.series)
    assert min(truth["grad_norm/global"], truth["update_norm/global"]) > 0
    recording.close()


def test_samples_that_hold_everything_are_exact() -> None:
    """No tensor here is larger than a sample; the clip, of which they know, halves gradients."""
    model = gpt()
    signals = (*EXACT[:2], GradExtremesSignal(count_entries=True), *EXACT[3:])
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    recording = Recording(model, optimizer, text(model), signals=signals, clip=0.2)
    for _ in range(3):
        measured, truth = recording.step()
        check(measured, truth)
        assert measured["clip_share/global"] > 0.3
    recording.close()


@pytest.mark.parametrize("optimizer", ["adamw", "adamw fused"])
def test_under_a_loss_scale_that_overflows_and_underflows(optimizer: str) -> None:
    model = gpt()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=4)
    made = OPTIMIZERS[optimizer](model.parameters())
    feed, now = text(model), 0
    recording = Recording(model, made, lambda: feed() * factor(), scaler=scaler, clip=0.5)

    def factor() -> float:
        return math.inf if now in (3, 9) else 1.0

    shares = []
    for now in range(1, 13):  # noqa: B007 - read by `factor`
        measured, truth = recording.step()
        check(measured, truth)
        shares.append(measured["underflow_share/global"])
    assert sum(recording.skipped) == 2
    assert 0 < max(share for share in shares if share == share) < 1
    recording.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd momentum", "rmsprop"])
def test_other_precisions(dtype: torch.dtype, optimizer: str) -> None:
    model = gpt().to(dtype)
    recording = Recording(model, OPTIMIZERS[optimizer](model.parameters()), text(model))
    for _ in range(4):
        measured, truth = recording.step()
        check(measured, truth)
    low = "lost_update_share/global"
    assert (0 < measured[low] < 1) if dtype == torch.bfloat16 else low not in measured
    recording.close()


BAD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", [0, 1, 511, 512, 2047, -1])
@pytest.mark.parametrize("optimizer", ["adamw fused", "sgd momentum"])
def test_a_gradient_with_one_bad_entry(optimizer: str, place: int, bad: str) -> None:
    model = gpt()
    recording = Recording(model, OPTIMIZERS[optimizer](model.parameters()), text(model))

    def spoil(grads: dict[str, torch.Tensor | None]) -> None:
        gradient = grads["blocks.1.attn.qkv.weight"]
        assert gradient is not None
        gradient.view(-1)[place] = BAD[bad]

    for number in range(1, 4):
        measured, truth = recording.step(spoil=spoil if number == 2 else None)
        check(measured, truth)
        broken = float(number == 2)
        assert measured["num_nonfinite_grads/global"] == broken
        assert measured["num_nonfinite_entries/blocks.1.attn.qkv.weight"] == broken
        assert recording.skipped[-1] == (number == 2)
    recording.close()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("path", ["embed", "blocks.0.ffn.down", "norm", "head"])
def test_weights_and_moments_with_one_bad_entry(path: str, bad: str) -> None:
    model = gpt()
    recording = Recording(model, OPTIMIZERS["adamw"](model.parameters()), text(model))
    recording.step()
    parameter = model.get_parameter(f"{path}.weight")
    with torch.no_grad():
        parameter.view(-1)[-1] = BAD[bad]
        recording.optimizer.state[parameter]["exp_avg_sq"].view(-1)[3] = BAD[bad]
    measured, truth = recording.step()
    # The NaN of a softmax spreads in torch as in the reference; Inf times 0 may not.
    check({k: v for k, v in measured.items() if k != ENTROPY},
          {k: v for k, v in truth.items() if k != ENTROPY})  # fmt: skip
    assert measured["num_nonfinite_moments/global"] == 1
    assert not math.isfinite(measured["param_norm/global"])
    recording.close()


def hot_pair(one: torch.Tensor) -> None:
    one.zero_()
    if one.numel() > 1:
        one.view(-1)[one.numel() // 3], one.view(-1)[-1] = 3e4, -3e4


SHAPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "all zero": torch.Tensor.zero_,
    "all equal": lambda one: one.fill_(0.1),
    "one hot pair": hot_pair,
    "tiny": lambda one: one.mul_(1e-25),
    "huge": lambda one: one.mul_(1e22),
    "subnormal": lambda one: one.fill_(1e-42),
    "mixed": lambda one: one.mul_(
        10.0 ** torch.linspace(-30, 8, max(one.numel(), 1)).view(one.shape)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd momentum"])
def test_gradients_of_awkward_shape(optimizer: str, shape: str) -> None:
    model = gpt()
    recording = Recording(model, OPTIMIZERS[optimizer](model.parameters()), text(model), clip=None)

    def spoil(grads: dict[str, torch.Tensor | None]) -> None:
        for gradient in grads.values():
            assert gradient is not None
            SHAPES[shape](gradient)

    for _ in range(2):
        measured, truth = recording.step(spoil=spoil)
        if shape in ("huge", "subnormal") and optimizer == "adamw":
            # fp32 holds neither the square of 1e22 nor of 1e-42: nor does the second moment.
            for name in [name for name in truth if name.startswith(("rms_t", "second"))]:
                del measured[name], truth[name]
        for name in [name for name in truth if name.startswith("rms_t") and truth[name] < 1e-10]:
            assert measured.pop(name) <= truth.pop(name) * (1 + 1e-5)  # may be 0
        check(measured, truth, tiny=2e-44)
    recording.close()


@pytest.mark.parametrize("shape", ["all equal", "one hot pair", "huge", "all zero"])
def test_logits_and_activations_of_awkward_shape(shape: str) -> None:
    model = gpt()
    recording = Recording(model, torch.optim.SGD(model.parameters(), lr=0.0), text(model))
    with torch.no_grad():
        for path in ("head.weight", "embed.weight", "blocks.1.ffn.down.weight"):
            parameter = model.get_parameter(path)
            if shape == "huge":
                parameter.mul_(1e9)
            elif shape != "all zero" or path != "embed.weight":
                SHAPES[shape](parameter)
    for _ in range(2):
        check(*recording.step())
    recording.close()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("momentum", [False, True])
def test_models_of_every_awkward_kind(name: str, momentum: bool) -> None:
    one = case(name)
    optimizer = torch.optim.SGD(one.model.parameters(), lr=0.1, momentum=0.9 * momentum)
    if not momentum and name not in ("sparse gradients", "fp16"):
        optimizer = torch.optim.AdamW(one.model.parameters(), lr=1e-2, foreach=False)
    if name == "sparse gradients" and not momentum:
        optimizer = torch.optim.SparseAdam([one.model[0].weight], lr=1e-2)
    recording = Recording(one.model, optimizer, lambda: one.feed().float().square().mean())
    for _ in range(3):
        measured, truth = recording.step()
        for series in {"output_entropy/global", "log_z/global"} & measured.keys():
            assert measured[series] == pytest.approx(truth[series], rel=1e-5, abs=2e-6)
            del measured[series], truth[series]
        check(measured, truth)
    recording.close()


class Shared(nn.Module):
    """One block, run three times; a parameter that no forward uses; one that some do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))] * 3
        )
        self.sometimes, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(3, 3)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.count = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        self.count += 1
        if self.count % 2:
            x = x + self.sometimes(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tied_shared_and_unused(name: str) -> None:
    torch.manual_seed(0)
    model = Shared()
    tokens = torch.arange(24).view(2, 12) % VOCABULARY
    feed = lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())  # noqa: E731
    recording = Recording(model, OPTIMIZERS[name](model.parameters()), feed)
    for _ in range(4):
        measured, truth = recording.step()
        check(measured, truth)
    assert measured["grad_norm/never.weight"] == 0
    assert len(recording.outputs) >= 1
    recording.close()


def test_a_run_begun_with_broken_weights_measures_growth_from_the_first_whole_ones() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    recording = Recording(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        lambda: model(torch.ones(1, 3)).nan_to_num().sum(),
    )
    with torch.no_grad():
        kept = model[0].weight.clone()
        model[0].weight[0, 0] = math.nan
    growth = [name for name in recording.observation.series if name.startswith("param_growth")]
    first, _ = recording.step()
    assert sorted(np.isnan([first[name] for name in growth])) == [False, True]
    with torch.no_grad():
        model[0].weight.copy_(kept)
    second, _ = recording.step()
    assert [second[name] for name in growth] == [1.0, 1.0]
    recording.close()
