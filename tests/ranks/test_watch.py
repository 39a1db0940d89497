"""`watch` on several ranks: the same values as on one, nothing changed, and faults named."""

import functools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foreshock
from foreshock.core.errors import ConfigError, RunDirError
from foreshock.watching import Watch
from tests.ranks.processes import on_ranks
from tests.ranks.test_replicas import flip
from tests.ranks.watched import (
    DIGEST_STEPS,
    SEALED_STEPS,
    STEPS,
    Training,
    differences,
    loss_of,
    made,
    recipe,
    train,
)

TOLERANCE = 5e-5
"""Relative; reductions in another order, over 8 steps of Adam, came to 6e-6."""
ONLY_ON_RANKS = {
    "loss_spread/global",
    "rank_of_largest_loss/global",
    "num_desynced/global",
    "num_changed_shards/global",
}
BITS = ("weights_digest/global", "optimizer_digest/global")
BY_COLUMNS = ("update_", "first_moment_norm/", "second_moment_rms/", "rms_t/")
"""Sampled, and of shards that are no whole rows: other samples."""
CANARY_STEP = 5
EXACT = {"exact": True, "count_entries": True}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def reference(**options: Any) -> Training:
    """The same training on one rank."""
    return train("plain", 0, 1, **options)


class Twice:
    """One layout, watched and not."""

    def __init__(self, layout: str, rank: int, world: int, **options: Any) -> None:
        warnings.filterwarnings("ignore")  # of torch's own about gloo and hooks
        self.watched = train(layout, rank, world, canary=CANARY_STEP, **options)
        self.plain = train(layout, rank, world, observed=False, **options)


def twice(rank: int, world: int, layouts: tuple[str, ...], options: dict[str, Any]) -> list[Twice]:
    return [Twice(layout, rank, world, **options) for layout in layouts]


def check(found: list[Twice], expected: Training, *, clipped: bool = False) -> None:
    """All that must hold, whatever the layout."""
    first = found[0].watched
    for one in found:
        # Every rank has the same values and alarms, and raises no false finding.
        assert repr(one.watched.values) == repr(first.values)
        assert one.watched.alarms == first.alarms
        assert one.watched.findings == []
        # Training and hooks are as if nobody had watched.
        assert one.watched.hooks == one.plain.hooks
        for name, weight in one.plain.weights.items():
            if clipped:  # by a more exact norm
                torch.testing.assert_close(one.watched.weights[name], weight, rtol=1e-5, atol=1e-7)
            else:
                assert torch.equal(one.watched.weights[name], weight), name
    assert first.norms[:1] == pytest.approx(found[0].plain.norms[:1], rel=1e-6)
    assert first.norms == pytest.approx(found[0].plain.norms, rel=1e-5)
    assert (sum(first.values["clip_share/global"].values()) > 1) == clipped
    assert set(first.values) - set(expected.values) <= ONLY_ON_RANKS
    assert set(expected.values) <= set(first.values)
    assert len(first.values["loss_spread/global"]) == STEPS
    for name, weight in expected.weights.items():
        torch.testing.assert_close(first.weights[name], weight, rtol=1e-4, atol=1e-6)


def far(found: Training, expected: Training, tolerance: float = TOLERANCE) -> dict[str, float]:
    """Series that are not those of one rank."""
    all_of_them = differences(found, expected)
    assert len(all_of_them) > 200
    return {
        name: one for name, one in all_of_them.items() if not one <= tolerance and name not in BITS
    }


@functools.cache
def exact_reference() -> Training:
    return train("plain", 0, 1, recipe=recipe(grad_extremes=EXACT))


def check_split(found: Training) -> None:
    """Layers that are split by columns take samples of their own; all else is as on one rank."""
    beyond = far(found, exact_reference())
    assert all(name.startswith(BY_COLUMNS) for name in beyond), beyond
    assert all(name.endswith((".ffn", "/global")) for name in beyond), beyond
    assert max(beyond.values()) < 0.1


def extra_collectives(one: Twice) -> list[int]:
    return [a - b for a, b in zip(one.watched.collectives, one.plain.collectives, strict=True)]


def expected_extra(*, replicas: bool, shards: bool) -> list[int]:
    """One a step; one more to compare replicas, and one to tell what changed in shards."""
    return [
        1 + (replicas and step in DIGEST_STEPS) + (shards and step - 1 in SEALED_STEPS)
        for step in range(1, STEPS + 1)
    ]


def without_canary(counts: list[int]) -> list[int]:
    return counts[: CANARY_STEP - 1] + counts[CANARY_STEP:]


def of_two(rank: int, world: int) -> tuple[Twice, Twice, Twice, Training]:
    ddp, fsdp = twice(rank, world, ("ddp", "fsdp"), {})
    clipped = Twice("fsdp", rank, world, clip=0.5)
    return ddp, fsdp, clipped, train("tp", rank, world, recipe=recipe(grad_extremes=EXACT))


def test_two_ranks_record_what_one_does_in_one_collective_a_step() -> None:
    ddp, fsdp, clipped, split = zip(*on_ranks(of_two, 2), strict=True)
    for found, options in ((ddp, {}), (fsdp, {}), (clipped, {"clip": 0.5})):
        check(list(found), reference(**options), clipped=bool(options))
        assert far(found[0].watched, reference(**options)) == {}
    counts = without_canary(extra_collectives(ddp[0]))
    assert counts == without_canary(expected_extra(replicas=True, shards=False))
    counts = without_canary(extra_collectives(fsdp[0]))
    assert counts == without_canary(expected_extra(replicas=False, shards=True))
    both = zip(clipped[0].watched.collectives, fsdp[0].watched.collectives, strict=True)
    assert [with_clip - without for with_clip, without in both] == [1] * STEPS
    losses = [one.watched.losses for one in ddp]
    spread = [abs(first - second) for first, second in zip(*losses, strict=True)]
    assert list(ddp[0].watched.values["loss_spread/global"].values()) == pytest.approx(spread)
    check_split(split[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "layout", "options"),
    [
        (4, "ddp", {}),
        (4, "ddp_view", {"micro_steps": 2}),
        (4, "ddp_static", {}),
        (2, "ddp_view", {"frozen": True}),
        (4, "fsdp", {}),
        (4, "fsdp", {"clip": 0.5}),
        (4, "fsdp", {"frozen": True, "micro_steps": 2}),
        (4, "hsdp", {}),
        (4, "hsdp", {"clip": 0.5}),
    ],
)
def test_any_number_of_ranks_and_layout(world: int, layout: str, options: dict[str, Any]) -> None:
    found = [one for (one,) in on_ranks(twice, world, (layout,), options)]
    one_rank = reference(**{key: one for key, one in options.items() if key != "micro_steps"})
    check(found, one_rank, clipped="clip" in options)
    assert far(found[0].watched, one_rank) == {}
    if "clip" not in options:
        counts = expected_extra(replicas=layout != "fsdp", shards=layout in ("fsdp", "hsdp"))
        assert without_canary(extra_collectives(found[0])) == without_canary(counts)


def split_inside(rank: int, world: int, layout: str) -> Twice:
    return Twice(layout, rank, world, recipe=recipe(grad_extremes=EXACT))


@pytest.mark.slow
@pytest.mark.parametrize(("world", "layout"), [(2, "tp"), (4, "tp"), (2, "sp")])
def test_tensor_parallel_layers(world: int, layout: str) -> None:
    """All that is not sampled agrees; gradients that are summands are summed first."""
    found = on_ranks(split_inside, world, layout)
    check(found, exact_reference())
    check_split(found[0].watched)


def still(rank: int, world: int, layouts: tuple[str, ...]) -> list[Training]:
    return [train(layout, rank, world, lr=0.0) for layout in layouts]


@pytest.mark.slow
def test_the_digest_of_the_weights_does_not_depend_on_the_layout() -> None:
    expected = reference(lr=0.0).values["weights_digest/global"]
    assert set(expected) == {4, 8} and len(set(expected.values())) == 1
    for one in on_ranks(still, 4, ("ddp", "fsdp", "hsdp", "tp")):
        assert [layout.values["weights_digest/global"] for layout in one] == [expected] * 4


def edit(step: int, model: Any) -> None:
    """Write to a weight between two steps; of DTensors the operation is counted apart."""
    if step == 3:
        with torch.no_grad():
            model.gpt.head.weight.mul_(1.5)


def edited(rank: int, world: int) -> list[Training]:
    return [train(layout, rank, world, meddle=edit) for layout in ("ddp", "fsdp")]


@pytest.mark.slow
def test_a_weight_that_is_edited_between_steps_is_no_part_of_the_update() -> None:
    one_rank = train("plain", 0, 1, meddle=edit)
    ratio = one_rank.values["update_ratio/gpt.head"]
    assert ratio[3] < 0.1 < 1 - 1 / 1.5
    for found in on_ranks(edited, 2)[0]:
        assert far(found, one_rank) == {}


def overflowing(rank: int, world: int, layout: str, fused: bool) -> list[Training]:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * torch.inf if step == 4 and rank == world - 1 else loss

    warnings.filterwarnings("ignore")
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8) for _ in range(2)]
    options: dict[str, Any] = {"spoil": spoil, "fused": fused}
    return [
        train(layout, rank, world, scaler=scaler, observed=observed, **options)
        for scaler, observed in zip(scalers, (True, False), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_an_overflow_on_one_rank_is_skipped_and_told_on_all(layout: str, fused: bool) -> None:
    ranks = on_ranks(overflowing, 2, layout, fused)
    (found, _), _ = ranks
    for watched, plain in ranks:
        assert repr(watched.values) == repr(found.values)
        assert watched.committed == found.committed
        for name, weight in plain.weights.items():
            assert torch.equal(watched.weights[name], weight), name
    assert found.committed == ([True] * 3 + [False] + [True] * 4 if fused else [True] * 7)
    if fused:
        assert found.values["num_nonfinite_grads/global"][4] > 10
        assert found.values["overflow_share/global"][4] == 0.25


# Faults


def through_bf16(layer: nn.Linear) -> None:
    """A kernel that silently computes in another precision."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.bfloat16(), layer.weight.bfloat16()).to(x.dtype)

    layer.forward = forward


def faults(rank: int, world: int, run_dir: str) -> dict[str, Training]:
    """Each fault is the last rank's."""
    warnings.filterwarnings("ignore")
    last = rank == world - 1

    def flipped(step: int, model: Any) -> None:
        if step == 3 and last:
            weight = model.gpt.blocks[1].attn.out.weight
            flip(weight.to_local() if hasattr(weight, "to_local") else weight)

    def flipped_sealed(step: int, model: Any) -> None:
        flipped(step - SEALED_STEPS[0] + 2, model)  # after the seal, before the next update

    def other_precision(step: int, model: Any) -> None:
        if step == 1 and last:
            through_bf16(model.gpt.blocks[1].ffn.up)

    def broken_ffn(step: int, model: Any) -> None:
        if step == 3 and last:
            ffn = model.gpt.blocks[1].ffn
            ffn.register_forward_hook(lambda module, given, output: output * torch.nan)

    def broken_loss(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * torch.inf if step == 3 and last else loss

    return {
        "replica": train("ddp", rank, world, meddle=flipped, run_dir=run_dir),
        "shard": train("fsdp", rank, world, meddle=flipped_sealed),
        "canary": train("ddp", rank, world, meddle=other_precision, canary=4),
        "canary of shards": train("fsdp", rank, world, meddle=other_precision, canary=4),
        "activations": train("ddp", rank, world, meddle=broken_ffn),
        "loss": train("fsdp", rank, world, spoil=broken_loss),
    }


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_faults_of_one_rank_are_named_on_all(world: int, tmp_path: Path) -> None:
    ranks = on_ranks(faults, world, str(tmp_path / "run"))
    found, last = ranks[0], world - 1
    for one in ranks:
        for name, training in one.items():
            assert training.findings == found[name].findings, name
            assert training.alarms == found[name].alarms, name
            assert repr(training.values) == repr(found[name].values), name

    path = "gpt.blocks.1.attn.out.weight"
    said = (
        f"{path}: rank {last} differs from the other {last} replicas"
        if world > 2
        else f"{path}: ranks 0, 1 differ; two replicas cannot tell which is right"
    )
    # The flipped bit spoils nothing else at once, and is there at each digest until it spreads.
    assert found["replica"].findings[0] == f"step {DIGEST_STEPS[0]}: {said}"
    assert found["replica"].values["num_desynced/global"][DIGEST_STEPS[0]] >= 1

    step = SEALED_STEPS[0] + 1
    assert found["shard"].findings == [
        f"step {step}: {path} changed on rank {last} between two steps (no write to it was counted)"
    ]
    changed = found["shard"].values["num_changed_shards/global"]
    assert changed == {step: 1.0, SEALED_STEPS[1] + 1: 0.0}

    for name in ("canary", "canary of shards"):
        first = next(one for one in found[name].findings if one.startswith("step 4: "))
        if world > 2:
            assert first.startswith(f"step 4: rank {last} differs from the other {last} in "), first
        else:
            assert "differ over ranks without a majority" in first, first
            assert "two ranks cannot tell which is right" in first, first

    values = found["activations"].values
    assert math.isnan(values["activation_rms/gpt.blocks.1"][3])
    assert math.isnan(values["activation_absmax/gpt.blocks.1"][3])
    assert math.isfinite(values["activation_rms/gpt.blocks.0"][3])
    assert math.isfinite(values["activation_rms/gpt.blocks.1"][2])

    values = found["loss"].values
    assert math.isinf(values["loss/global"][3]) and math.isfinite(values["loss/global"][2])
    assert values["rank_of_largest_loss/global"][3] == last
    assert values["num_nonfinite_grads/global"][2] == 0
    assert values["num_nonfinite_grads/global"][3] > 10
    assert found["loss"].alarms

    # The first rank alone has written, and all of it.
    data = foreshock.open(tmp_path / "run")
    assert data.read("loss/global").values[:, 0].tolist() == pytest.approx(
        list(found["replica"].values["loss/global"].values())
    )


def not_begun(rank: int, world: int, run_dir: str) -> list[str]:
    """Ranks that measure different things, and a first rank that cannot write."""
    said = []
    for options in (
        {"level": "minimal" if rank else "standard"},
        {"run_dir": run_dir},
    ):
        model, inner = made("ddp", world)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        with pytest.raises((ConfigError, RunDirError)) as caught:
            Watch(model, optimizer, **options)
        said.append(f"{type(caught.value).__name__}: {caught.value}")
        assert not optimizer._optimizer_step_pre_hooks
        assert not any(module._forward_hooks for module in inner.modules())
        loss_of(model, torch.zeros(2, 5, dtype=torch.int64)).backward()  # nobody is left waiting
    return said


def test_all_ranks_begin_or_none(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "theirs.txt").write_text("kept")
    first, second = on_ranks(not_begun, 2, str(tmp_path / "run"))
    assert first[0] == second[0]
    assert first[0].startswith(
        "ConfigError: ranks differ in their signals or parameters (rank 0 has "
    )
    assert first[1].startswith("RunDirError: ")
    assert second[1].startswith("ConfigError: watching could not begin on other ranks: {0: ")
    assert [one.name for one in (tmp_path / "run").iterdir()] == ["theirs.txt"]
