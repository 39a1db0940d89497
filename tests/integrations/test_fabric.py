"""Loops with Fabric under the Guard, with the real package."""

import os

import pytest
import torch

pytest.importorskip("lightning")

from lightning.fabric import Fabric, seed_everything
from lightning.fabric.plugins import MixedPrecision
from lightning.fabric.strategies import FSDPStrategy, ModelParallelStrategy

import foreshock
from foreshock.core.errors import CapabilityError, ConfigError
from foreshock.integrations import fabric as adapter
from tests.integrations import scenario
from tests.ranks.processes import on_ranks


def fabric_of(**options):
    return Fabric(accelerator="cpu", **{"devices": 1, **options})


def set_up(fabric, *, dropout=0.0):
    model = scenario.model(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=scenario.LR)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return *fabric.setup(model, optimizer), scheduler


def guarded(fabric, parts, run_dir, *, accumulate=1, **options):
    model, optimizer, scheduler = parts
    defaults = {"recipe": scenario.recipe(), "max_steps": scenario.STEPS, "clip": scenario.CLIP}
    return adapter.guard(
        fabric,
        model,
        optimizer,
        scenario.stream(scenario.BATCH // accumulate, fabric.global_rank, fabric.world_size),
        run_dir=run_dir,
        scheduler=scheduler,
        accumulate=accumulate,
        **{**defaults, **options},
    )


def untouched(fabric, *, accumulate=1, clip=scenario.CLIP, norms=None):
    """The loop of Fabric's documentation; `norms` takes those that clipping returns."""
    rows, norms = scenario.Rows(), [] if norms is None else norms

    def run(batches):
        model, optimizer, scheduler = set_up(fabric)
        size = scenario.BATCH // accumulate
        flat = [rows[row] for batch in batches for row in batch]
        share = size // fabric.world_size
        starts = range(fabric.global_rank * share, len(flat), size)
        for number, start in enumerate(starts, 1):
            batch = torch.utils.data.default_collate(flat[start : start + share])
            with fabric.no_backward_sync(model, enabled=number % accumulate != 0):
                loss = model(**batch)["loss"]
                fabric.backward(loss / accumulate)
            if number % accumulate == 0:
                norms.append(float(fabric.clip_gradients(model, optimizer, max_norm=clip)))
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        return model

    return run


@pytest.mark.parametrize(
    ("accumulate", "options"),
    [
        pytest.param(1, {}, id="plain", marks=pytest.mark.slow),
        pytest.param(2, {}, id="accumulated"),
        pytest.param(1, {"precision": "bf16-mixed"}, id="bf16-mixed", marks=pytest.mark.slow),
        pytest.param(1, {"precision": "bf16-true"}, id="bf16-true", marks=pytest.mark.slow),
    ],
)
def test_skips_rolls_back_and_ends_as_an_untouched_loop(tmp_path, accumulate, options):
    fabric = fabric_of(**options)
    parts = set_up(fabric)
    guard = guarded(fabric, parts, tmp_path / "run", accumulate=accumulate)
    scenario.train(guard, parts[0])
    assert guard.book.num_rollbacks > 0
    assert parts[2].last_epoch == scenario.STEPS
    twin = untouched(fabric, accumulate=accumulate)
    scenario.check(tmp_path / "run", parts[0], twin)


def first_batches(steps):
    placed = scenario.order()
    return [placed[start : start + 8] for start in range(0, 8 * steps, 8)]


def test_it_clips_as_fabric_does_and_has_the_norm_from_before(tmp_path):
    fabric = fabric_of()
    parts = set_up(fabric)
    norms, expected = [], []
    guard = guarded(fabric, parts, tmp_path / "run", clip=0.2, max_steps=20)
    scenario.train(guard, parts[0], lambda guard: norms.append(float(guard.grad_norm)))
    twin = untouched(fabric, clip=0.2, norms=expected)(first_batches(20))
    assert min(expected) > 0.2
    assert norms == pytest.approx(expected)
    for mine, other in zip(scenario.weights(parts[0]), scenario.weights(twin), strict=True):
        torch.testing.assert_close(mine, other)


def next_batch():
    """The first batch of a step that is not accumulated."""
    rows = scenario.Rows()
    return torch.utils.data.default_collate([rows[row] for row in first_batches(1)[0]])


def half():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=7)
    return fabric_of(plugins=MixedPrecision("16-mixed", "cpu", scaler))


def test_fp16_passes_through_the_scaler(tmp_path):
    fabric = half()
    parts = set_up(fabric)
    guard = guarded(fabric, parts, tmp_path / "run", accumulate=2, max_steps=20)
    scenario.train(guard, parts[0])
    twin = untouched(half(), accumulate=2)(first_batches(20))
    assert fabric.strategy.precision.scaler.get_scale() == 2.0**14
    for mine, other in zip(scenario.weights(parts[0]), scenario.weights(twin), strict=True):
        assert torch.equal(mine, other)
    losses = foreshock.open(tmp_path / "run").read("loss/global")["loss/global"]
    expected = float(scenario.model()(**next_batch())["loss"].detach())
    assert losses[0] == pytest.approx(expected, rel=0.01)  # not of what was scaled


def interrupted(run_dir, kill_at=None):
    seed_everything(scenario.SEED, verbose=False)
    fabric = fabric_of()
    parts = set_up(fabric, dropout=0.1)
    guard = guarded(fabric, parts, run_dir)
    scenario.train(guard, parts[0], lambda guard: guard.step_number == kill_at and scenario.die())
    return guard.digest()


def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path):
    whole = interrupted(tmp_path / "whole")
    call = "from tests.integrations.test_fabric import interrupted as go; "
    scenario.killed(f"{call} go({str(tmp_path / 'run')!r}, 75)")
    assert interrupted(tmp_path / "run") == whole


def test_fabrics_callbacks_hear_of_each_step(tmp_path):
    class Counting:
        heard = 0

        def on_after_optimizer_step(self, optimizer):
            assert isinstance(optimizer, torch.optim.AdamW)
            self.heard += 1

    counting = Counting()
    fabric = fabric_of(callbacks=counting)
    parts = set_up(fabric)
    scenario.train(guarded(fabric, parts, tmp_path / "run", accumulate=2, max_steps=3), parts[0])
    assert counting.heard == 3


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy])
def test_what_cannot_be_guarded_is_refused_before_the_first_step(tmp_path, kind):
    fabric = fabric_of()
    parts = set_up(fabric)
    fabric._strategy = object.__new__(kind)
    with pytest.raises(CapabilityError, match="cannot be guarded"):
        guarded(fabric, parts, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_not_set_up_is_refused(tmp_path):
    fabric = fabric_of()
    model, optimizer, scheduler = set_up(fabric)
    with pytest.raises(ConfigError, match="the model is a Model that was not set up"):
        guarded(fabric, (scenario.model(), optimizer, scheduler), tmp_path / "run")
    with pytest.raises(ConfigError, match="the optimizer is a AdamW"):
        guarded(fabric, (model, optimizer.optimizer, scheduler), tmp_path / "run")


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = scenario.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=scenario.LR)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    names = {"fabric": fabric_of(), "model": model, "optimizer": optimizer}
    names |= {"scheduler": scheduler, "dataset": scenario.Rows()}
    names |= {"loss_fn": lambda model, batch: model(**batch)["loss"]}
    exec(scenario.example("Fabric"), names)
    assert names["guard"].step_number > 50
    assert (tmp_path / "runs/a/decisions.jsonl").exists()


def on_a_rank(rank, world, run_dir):
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    fabric = fabric_of(devices=world, strategy="ddp")
    fabric.launch()
    assert (fabric.global_rank, fabric.world_size) == (rank, world)
    parts = set_up(fabric)
    guard = guarded(fabric, parts, run_dir, accumulate=2)
    scenario.train(guard, parts[0])
    scenario.check(run_dir, parts[0], untouched(fabric, accumulate=2))
    return guard.book.num_rollbacks


@pytest.mark.slow
def test_two_processes(tmp_path):
    found = on_ranks(on_a_rank, 2, tmp_path / "run")
    assert found[0] == found[1] > 0
