"""Loops with an Accelerator under the Guard, with the real package."""

import os

import pytest
import torch

accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState, GradientState  # noqa: E402

import foreshock  # noqa: E402
from foreshock.core.errors import CapabilityError, ConfigError  # noqa: E402
from foreshock.core.program import Loss  # noqa: E402
from foreshock.integrations import accelerate as adapter  # noqa: E402
from tests.integrations import scenario  # noqa: E402
from tests.ranks.processes import on_ranks  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    """An Accelerator of one test is not to shape that of the next."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def prepared(accelerator, *, dropout=0.0):
    model = scenario.model(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=scenario.LR)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return accelerator.prepare(model, optimizer, scheduler)


def guarded(accelerator, parts, run_dir, **options):
    model, optimizer, scheduler = parts
    defaults = {"recipe": scenario.recipe(), "max_steps": scenario.STEPS, "clip": scenario.CLIP}
    stream = scenario.stream(
        scenario.BATCH // accelerator.gradient_accumulation_steps,
        accelerator.process_index,
        accelerator.num_processes,
    )
    return adapter.guard(
        accelerator,
        model,
        optimizer,
        stream,
        run_dir=run_dir,
        scheduler=scheduler,
        **{**defaults, **options},
    )


def untouched(accelerator, *, clip=scenario.CLIP, norms=None):
    """The loop of Accelerate's documentation; `norms` takes those that clipping returns."""
    rows, norms = scenario.Rows(), [] if norms is None else norms
    world, rank = accelerator.num_processes, accelerator.process_index

    def run(batches):
        model, optimizer, scheduler = prepared(accelerator)
        size = scenario.BATCH // accelerator.gradient_accumulation_steps
        flat = [rows[row] for batch in batches for row in batch]
        share = size // world
        for start in range(rank * share, len(flat), size):
            batch = torch.utils.data.default_collate(flat[start : start + share])
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                    norms.append(float(norm))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        return accelerator.unwrap_model(model)

    return run


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain", marks=pytest.mark.slow),
        pytest.param({"gradient_accumulation_steps": 2}, id="accumulated"),
        pytest.param({"mixed_precision": "bf16"}, id="bf16", marks=pytest.mark.slow),
    ],
)
def test_skips_rolls_back_and_ends_as_an_untouched_loop(tmp_path, options):
    accelerator = accelerate.Accelerator(cpu=True, **options)
    parts = prepared(accelerator)
    guard = guarded(accelerator, parts, tmp_path / "run")
    scenario.train(guard, parts[0])
    assert guard.book.num_rollbacks > 0
    assert parts[2].scheduler.last_epoch == scenario.STEPS
    scenario.check(tmp_path / "run", parts[0], untouched(accelerator))


def test_it_clips_as_the_accelerator_does_and_has_the_norm_from_before(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    parts = prepared(accelerator)
    norms, expected = [], []
    guard = guarded(accelerator, parts, tmp_path / "run", clip=0.2, max_steps=20)
    scenario.train(guard, parts[0], lambda guard: norms.append(guard.grad_norm))
    placed = scenario.order()
    batches = [placed[start : start + scenario.BATCH] for start in range(0, 160, scenario.BATCH)]
    twin = untouched(accelerator, clip=0.2, norms=expected)(batches)
    assert min(expected) > 0.2
    assert [float(one) for one in norms[1::2]] == pytest.approx(expected)
    for mine, other in zip(scenario.weights(parts[0]), scenario.weights(twin), strict=True):
        torch.testing.assert_close(mine, other)


def interrupted(run_dir, kill_at=None):
    accelerate.utils.set_seed(scenario.SEED)
    accelerator = accelerate.Accelerator(cpu=True)
    parts = prepared(accelerator, dropout=0.1)
    guard = guarded(accelerator, parts, run_dir)
    scenario.train(guard, parts[0], lambda guard: guard.step_number == kill_at and scenario.die())
    return guard.digest()


def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path):
    whole = interrupted(tmp_path / "whole")
    call = "from tests.integrations.test_accelerate import interrupted as go; "
    scenario.killed(f"{call} go({str(tmp_path / 'run')!r}, 75)")
    assert interrupted(tmp_path / "run") == whole


def test_batches_of_a_step_are_told_apart_as_by_accumulate(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    parts = prepared(accelerator)
    synced, losses = [], []
    with accelerator.accumulate(parts[0]):
        pass  # a loop before this one ended within a step
    with guarded(accelerator, parts, tmp_path / "run", max_steps=2) as guard:
        for batch in guard:
            synced.append(accelerator.sync_gradients)
            losses.append(parts[0](**batch)["loss"])
            verdict = guard.step(losses[-1])
            assert (verdict is not None) == accelerator.sync_gradients
    assert synced == [False, False, True] * 2
    assert parts[2].scheduler.last_epoch == 2
    seen = foreshock.open(tmp_path / "run").read("loss/global")["loss/global"]
    assert seen == pytest.approx([float(sum(losses[:3])) / 3, float(sum(losses[3:])) / 3])


def test_the_loss_of_each_sample_is_seen(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    parts = prepared(accelerator)
    told = []
    with guarded(accelerator, parts, tmp_path / "run", max_steps=2, per_sample=True) as guard:
        for batch in guard:
            each = torch.arange(4.0) + len(told)
            told.append(each)
            guard.step(Loss(total=parts[0](**batch)["loss"], per_sample=each))
    seen = foreshock.open(tmp_path / "run").read("loss_largest_sample/global")
    assert list(seen["loss_largest_sample/global"]) == [4.0, 6.0]


def test_a_schedule_that_was_not_prepared_is_stepped_once_a_step(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, scheduler = prepared(accelerator)
    parts = model, optimizer, scheduler.scheduler
    scenario.train(guarded(accelerator, parts, tmp_path / "run", max_steps=3), model)
    assert scheduler.scheduler.last_epoch == 3


def test_a_schedule_apart_from_the_optimizer_is_stepped_at_each_call(tmp_path):
    options = {"gradient_accumulation_steps": 2, "step_scheduler_with_optimizer": False}
    accelerator = accelerate.Accelerator(cpu=True, **options)
    parts = prepared(accelerator)
    scenario.train(guarded(accelerator, parts, tmp_path / "run", max_steps=3), parts[0])
    assert parts[2].scheduler.last_epoch == 6


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM", "FSDP", "XLA"])
def test_what_cannot_be_guarded_is_refused_before_the_first_step(tmp_path, kind):
    accelerator = accelerate.Accelerator(cpu=True)
    parts = prepared(accelerator)
    accelerator.state.distributed_type = accelerate.DistributedType[kind]
    with pytest.raises(CapabilityError, match="cannot be guarded"):
        guarded(accelerator, parts, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_optimizer_that_was_not_prepared_is_refused(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, scheduler = prepared(accelerator)
    with pytest.raises(ConfigError, match="not prepared"):
        guarded(accelerator, (model, optimizer.optimizer, scheduler), tmp_path / "run")


def test_a_loader_of_ones_own_cannot_go_back(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, _ = prepared(accelerator)
    loader = torch.utils.data.DataLoader(scenario.Rows(), batch_size=8)
    with pytest.raises(CapabilityError, match="quarantine_data"):
        adapter.guard(accelerator, model, optimizer, loader, run_dir=tmp_path / "run")


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, scheduler = prepared(accelerator)
    names = {"accelerator": accelerator, "model": model, "optimizer": optimizer.optimizer}
    names |= {"scheduler": scheduler.scheduler, "dataset": scenario.Rows()}
    names |= {"loss_fn": lambda model, batch: model(**batch)["loss"]}
    exec(scenario.example("Accelerate"), names)
    assert names["guard"].step_number > 50
    assert (tmp_path / "runs/a/decisions.jsonl").exists()


def on_a_rank(rank, world, run_dir):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == world
    parts = prepared(accelerator)
    assert isinstance(parts[0], torch.nn.parallel.DistributedDataParallel)
    guard = guarded(accelerator, parts, run_dir)
    scenario.train(guard, parts[0])
    scenario.check(run_dir, accelerator.unwrap_model(parts[0]), untouched(accelerator))
    return guard.book.num_rollbacks


@pytest.mark.slow
def test_two_processes(tmp_path):
    found = on_ranks(on_a_rank, 2, tmp_path / "run")
    assert found[0] == found[1] > 0
