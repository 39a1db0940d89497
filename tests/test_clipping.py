"""Clipping: as torch's, whoever does it; and what is measured is of before, or of what is used."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from foreshock.fused.passes import unfused
from foreshock.recipes import watching
from foreshock.sampling import Sampling
from foreshock.signals.grad_extremes import GradExtremesSignal
from foreshock.signals.gradients import GradientSignal
from foreshock.signals.moments import MomentsSignal
from foreshock.signals.precision import PrecisionSignal
from foreshock.update import Update, trained_parameters
from foreshock.watching import Watch
from tests.reference import signals as reference
from tests.signals.recording import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("way")

VOCABULARY, WIDTH = 31, 24
MAX_NORM = 0.3


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 70), nn.GELU(), nn.Linear(70, WIDTH),
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY),
    )  # fmt: skip


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (64,), generator=generator)
    return cross_entropy(model(tokens), (tokens * 7 + 3) % VOCABULARY) * (5 if step % 3 else 0.05)


def spoil_nothing(step: int, model: nn.Module) -> None:
    pass


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {name: one.detach().clone() for name, one in model.named_parameters()}
    for place, kept in optimizer.state_dict()["state"].items():
        for name, one in kept.items():
            if isinstance(one, torch.Tensor):
                found[f"{place}.{name}"] = one.clone()
    return found


def assert_close(found: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> None:
    """To 1e-6 of the largest entry of each tensor."""
    assert found.keys() == true.keys()
    for name, one in found.items():
        largest = true[name].abs().max().item()
        torch.testing.assert_close(one, true[name], rtol=0, atol=1e-6 * max(largest, 1e-30))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_folded_clip_equals_clip_grad_norm(name: str) -> None:
    ours = model_of()
    our_optimizer = OPTIMIZERS[name](ours.parameters())
    update = Update(our_optimizer, trained_parameters(ours, our_optimizer), clip=MAX_NORM)
    clipped = 0
    for step in range(1, 16):
        theirs = copy.deepcopy(ours)
        their_optimizer = OPTIMIZERS[name](theirs.parameters())
        their_optimizer.load_state_dict(copy.deepcopy(our_optimizer.state_dict()))
        loss_of(theirs, step).backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), MAX_NORM)
        their_optimizer.step()
        update.backward(loss_of(ours, step))
        _, total = update.gradient_sizes()
        assert total.item() == pytest.approx(norm.item(), rel=1e-6)
        coefficient = min(1.0, MAX_NORM / (norm.item() + 1e-6))
        assert float(update.clip_factor(total)) == pytest.approx(coefficient, rel=1e-6)
        assert update.commit_or_skip(total, math.inf, 1.0)
        assert_close(state(ours, our_optimizer), state(theirs, their_optimizer))
        clipped += coefficient < 1
    assert 5 < clipped < 15


GRADIENTS: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "as they are": lambda grads: None,
    "small": lambda grads: [one.mul_(1e-4) for one in grads],
    "huge": lambda grads: [one.mul_(1e20) for one in grads],
    "zero": lambda grads: [one.zero_() for one in grads],
    "one NaN": lambda grads: grads[1].view(-1)[5].fill_(math.nan),
    "one Inf": lambda grads: grads[1].view(-1)[5].fill_(math.inf),
}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_watched_clip_equals_clip_grad_norm(kind: str) -> None:
    ours = model_of()
    loss_of(ours, 1).backward()
    GRADIENTS[kind]([one.grad for one in ours.parameters() if one.grad is not None])
    theirs = copy.deepcopy(ours)
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        its.grad = mine.grad.clone()
    if kind == "huge":  # a norm of fp64, since fp32 would overflow in theirs
        norm = reference.norm_of(
            [reference.norm(reference.array(one.grad, one)) for one in theirs.parameters()]
        )
        given = torch.tensor(norm, dtype=torch.float32)
        nn.utils.clip_grads_with_norm_(theirs.parameters(), MAX_NORM, given)
    else:
        given = nn.utils.clip_grad_norm_(theirs.parameters(), MAX_NORM)
    with Watch(ours, torch.optim.SGD(ours.parameters(), lr=0.1)) as watched:
        found = watched.clip_(MAX_NORM)
    torch.testing.assert_close(found, given, rtol=1e-6, atol=0, equal_nan=True)
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-6, atol=0, equal_nan=True)


SIGNALS = (
    GradientSignal(per_parameter=True),
    MomentsSignal(),
    PrecisionSignal(),
)
EXTREMES = {
    "exact": GradExtremesSignal(exact=True, count_entries=True),
    "sampled": GradExtremesSignal(count_entries=True),
}


class Loop:
    """A loop that clips, or not, in one of the ways there are, and knows what is true."""

    def __init__(
        self, clip: str, scaling: str, optimizer: str, extremes: str = "exact", interval: int = 1
    ) -> None:
        self.clip, self.scaling = clip, scaling
        self.model = model_of()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scaler = None
        if scaling != "none":
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-4, growth_interval=4)
        signals = (*SIGNALS, EXTREMES[extremes])
        recipe = dataclasses.replace(
            watching(),
            signals=tuple(dataclasses.replace(one, interval_steps=interval) for one in signals),
        )
        self.used: list[Any] = []
        self.optimizer.register_step_pre_hook(self._keep_used)
        self.watched = Watch(
            self.model, self.optimizer, recipe=recipe, with_loss=False, scaler=self.scaler
        )
        self.paths = dict(self.watched._site.parameters)
        self.groups = dict(zip(self.paths, self.watched._site.groups, strict=True))
        self.skipped: list[bool] = []

    def step(
        self, number: int, spoil: Callable[[int, nn.Module], None] = spoil_nothing
    ) -> dict[str, float]:
        """Make one step; what should have been measured."""
        loss = loss_of(self.model, number)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        spoil(number, self.model)
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        in_memory = scale
        if self.scaling == "unscaled":
            assert self.scaler is not None
            self.scaler.unscale_(self.optimizer)
            in_memory = 1.0
        true = {
            path: reference.array(one.grad, one) / in_memory for path, one in self.paths.items()
        }
        match self.clip:
            case "watched":
                self.watched.clip_(MAX_NORM)
            case "told":
                self.watched.before_clip()
                nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            case "untold":
                nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
                true = {path: reference.array(one.grad, one) for path, one in self.paths.items()}
        self.used = []
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
        self.skipped.append(not self.used or self.used[1])
        found = self._truth(true, scale) if self.used else {}
        if self.scaler is not None:
            self.scaler.update()
        self.optimizer.zero_grad()
        return found

    def _keep_used(self, optimizer: Any, *_: Any) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        divisor = 1.0 if scale is None else float(scale)
        skipped = bool(getattr(optimizer, "found_inf", 0.0))
        grads = {path: reference.array(one.grad, one) / divisor for path, one in self.paths.items()}
        self.used = [grads, skipped]

    def _truth(self, true: Any, scale: float) -> dict[str, float]:
        group = self.optimizer.param_groups[0]
        clip = MAX_NORM if self.clip == "watched" else None
        found = reference.gradients(true, self.groups, clip=clip, eps=float(group.get("eps", 0.0)))
        for path, one in true.items():
            found.setdefault(f"grad_norm/{path}", reference.norm(one))
        found |= reference.extremes(true, self.groups)
        committed = self.skipped if self.skipped else [False]
        found |= reference.precision(
            true, scale=None if self.scaler is None else scale, skipped=committed
        )
        states = {path: self.optimizer.state[one] for path, one in self.paths.items()}
        first = {path: reference.array(one["exp_avg"]) for path, one in states.items()}
        second = {path: reference.array(one["exp_avg_sq"]) for path, one in states.items()}
        num_updates = float(next(iter(states.values()))["step"])
        adaptive = reference.Adaptive(group["betas"][1], group["eps"])
        return found | reference.moments(
            first, second, self.used[0], self.groups, num_updates=num_updates, adaptive=adaptive
        )

    def measured(self, name: str) -> list[float]:
        return [reading.value for reading in self.watched.readings(name)]


def compare(loop: Loop, truth: list[dict[str, float]], *, rel: float = 1e-5) -> None:
    loop.watched._read(drain=True)
    assert set(loop.watched.series) == truth[0].keys()
    for name in loop.watched.series:
        if name == "overflow_share/global":
            continue  # of the recorded steps: see the test of overflows
        expected = [one[name] for one in truth]
        assert loop.measured(name) == pytest.approx(expected, rel=rel, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("extremes", EXTREMES)
@pytest.mark.parametrize("optimizer", ["adamw", "adamw fused"])
@pytest.mark.parametrize(
    ("clip", "scaling"),
    [
        ("none", "scaled"),  # whoever clips, does it after unscale_
        *(
            (clip, scaling)
            for clip in ("none", "watched", "told", "untold")
            for scaling in ("none", "unscaled")
        ),
    ],
)
def test_true_gradients_are_recorded_and_used_ones_judged(
    clip: str, scaling: str, optimizer: str, extremes: str
) -> None:
    loop = Loop(clip, scaling, optimizer, extremes)
    with loop.watched:
        truth = [loop.step(number) for number in range(1, 9)]
        compare(loop, truth)
    if scaling != "none":
        assert 0.02 < max(one["underflow_share/global"] for one in truth) < 0.95
    norms = [one["grad_norm/global"] for one in truth]
    assert min(norms) < MAX_NORM * 0.99
    assert max(norms) > MAX_NORM * 2 or clip == "untold"


def one_bad(value: float) -> Callable[[int, nn.Module], None]:
    def spoil(number: int, model: nn.Module) -> None:
        if number == 3:
            gradient = model[3].weight.grad
            assert gradient is not None
            gradient.view(-1)[7] = value

    return spoil


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("extremes", EXTREMES)
@pytest.mark.parametrize("clip", ["watched", "told"])
def test_clipping_does_not_spread_one_bad_entry_over_the_record(
    clip: str, extremes: str, bad: float
) -> None:
    loop = Loop(clip, "none", "adamw", extremes)
    with loop.watched:
        truth = [loop.step(number, one_bad(bad)) for number in range(1, 4)]
        compare(loop, truth)
    assert [truth[2][f"num_nonfinite_entries/{path}"] for path in loop.paths] == [
        float(path == "3.weight") for path in loop.paths
    ]
    assert math.isfinite(loop.measured("grad_absmax/1")[2])
    assert not math.isfinite(loop.measured("grad_absmax/3")[2])


@pytest.mark.parametrize("optimizer", ["adamw", "adamw fused"])
@pytest.mark.parametrize("clip", ["watched", "told"])
def test_an_overflow_that_the_scaler_skips_leaves_the_next_step_right(
    clip: str, optimizer: str
) -> None:
    loop = Loop(clip, "unscaled", optimizer)
    with loop.watched:
        truth = [loop.step(number, one_bad(math.inf)) for number in range(1, 8)]
        recorded = [one for one in truth if one]
        assert len(recorded) == (7 if optimizer == "adamw fused" else 6)
        compare(loop, recorded)
    assert loop.skipped == [number == 3 for number in range(1, 8)]


@pytest.mark.parametrize(("clip", "samples"), [("none", 1), ("watched", 1), ("told", 2)])
def test_gradients_are_sampled_no_more_often_than_needed(
    clip: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, taken = Loop(clip, "none", "adamw", "sampled"), []
    fresh = Sampling._fresh
    monkeypatch.setattr(
        Sampling, "_fresh", lambda self, tensors: taken.append(1) or fresh(self, tensors)
    )
    with unfused(), loop.watched:
        for number in range(1, 4):
            loop.step(number)
    assert len(taken) == 3 * samples


@pytest.mark.parametrize("clip", ["watched", "told"])
def test_signals_that_are_not_due_measure_nothing_at_the_clip_either(clip: str) -> None:
    loop = Loop(clip, "none", "adamw", "sampled", interval=3)
    with loop.watched:
        truth = [loop.step(number) for number in range(1, 8)]
        compare(loop, [truth[2], truth[5]])
        steps = [one.step for one in loop.watched.readings("grad_absmax/global")]
    assert steps == [3, 6]


def test_moments_alone_judge_the_used_gradients_of_a_watched_clip() -> None:
    """No other signal takes the sample before the clip then."""
    loop = Loop("watched", "none", "adamw")
    loop.watched.close()
    recipe = dataclasses.replace(watching(), signals=(MomentsSignal(),))
    loop.watched = Watch(loop.model, loop.optimizer, recipe=recipe, with_loss=False)
    with loop.watched:
        truth = [loop.step(number) for number in range(1, 5)]
        found = loop.measured("rms_t/global")
    assert found == pytest.approx([one["rms_t/global"] for one in truth], rel=1e-5)
