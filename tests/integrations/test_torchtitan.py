"""torchtitan's Trainer under the Guard, by a stand-in of its interface."""

import os
import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed._composable import replicate
from torch.distributed.fsdp import fully_shard

from foreshock.core.errors import CapabilityError, Stopped
from foreshock.durable import RealDisk
from foreshock.integrations import torchtitan as adapter
from foreshock.run_view import view_run
from tests.data.lineage import lineage
from tests.integrations import scenario
from tests.integrations.titan import Trainer
from tests.ranks.processes import on_ranks

pytestmark = pytest.mark.usefixtures("group_of_one")


def guarded(trainer, run_dir, **options):
    adapter.train(trainer, run_dir, **{"recipe": scenario.recipe(), **options})
    return trainer


def survivors(run_dir, accumulate):
    """The rows of each update that counts; the skipped one is left out."""
    placed, size = scenario.order(), scenario.BATCH // accumulate
    found = []
    for places in lineage(view_run(RealDisk(), run_dir)).values():
        found.append([placed[size * one + n] for one in places for n in range(size)])
    return [rows for rows in found if placed[scenario.NAN_AT] not in rows]


def whole(trainer):
    state = trainer.model_parts[0].state_dict().items()
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in state}


def check(run_dir, trainer, **options):
    view = view_run(RealDisk(), run_dir)
    assert "plan" in [record["kind"] for record in view.records]
    rows = survivors(run_dir, trainer.gradient_accumulation_steps)
    assert len(rows) == scenario.STEPS - 1
    seen = [row for batch in rows for row in batch]
    assert len(seen) == len(set(seen))
    assert not scenario.Rows().bad & set(seen)
    twin = Trainer(seen, steps=len(rows), **options)
    twin.train()
    mine, other = whole(trainer), whole(twin)
    assert mine.keys() == other.keys()
    for name in mine:
        assert torch.equal(mine[name], other[name]), name


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skips_rolls_back_and_ends_as_an_untouched_trainer(tmp_path, accumulate):
    trainer = Trainer(scenario.order(), accumulate=accumulate)
    guarded(trainer, tmp_path / "run")
    check(tmp_path / "run", trainer, accumulate=accumulate)
    assert trainer.step == trainer.lr_schedulers.schedulers[0].last_epoch == scenario.STEPS
    assert trainer.ntokens_seen == scenario.STEPS * scenario.BATCH * scenario.LENGTH
    assert trainer.checkpointer.saved[-1] == (scenario.STEPS, True)
    assert trainer.checkpointer.waited >= scenario.STEPS
    assert "train_step" not in vars(trainer)


def test_without_trouble_its_log_is_that_of_the_trainer(tmp_path):
    trainer, twin = (Trainer(scenario.order(), steps=20) for _ in range(2))
    guarded(trainer, tmp_path / "run")
    twin.train()
    assert trainer.checkpointer.saved == twin.checkpointer.saved
    mine, other = trainer.metrics_processor.logged, twin.metrics_processor.logged
    assert [one[0] for one in mine] == [1, 10, 20]
    for one, two in zip(mine, other, strict=True):
        assert one[:4] == pytest.approx(two[:4], rel=1e-5)
        assert one[4] == two[4]


def interrupted(run_dir, kill_at=None, what=scenario.die):
    trainer = Trainer(scenario.order(), dropout=0.1)
    for seed in random.seed, np.random.seed, torch.manual_seed:
        seed(scenario.SEED)
    if kill_at is not None:
        save = trainer.checkpointer.save
        trainer.checkpointer.save = lambda step, **named: (
            what() if step == kill_at else save(step, **named)
        )
    guarded(trainer, run_dir)
    (digest,) = {
        record["digest"]
        for record in view_run(RealDisk(), run_dir).records
        if record["kind"] == "run_finished"
    }
    return digest


def alone_and_killed(folder, kill_at):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    interrupted(f"{folder}/run", kill_at)


def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path):
    whole = interrupted(tmp_path / "whole")
    call = "from tests.integrations.test_torchtitan import alone_and_killed as go; "
    scenario.killed(f"{call} go({str(tmp_path)!r}, 75)")
    assert interrupted(tmp_path / "run") == whole


@pytest.mark.usefixtures("no_handlers")
def test_asked_to_stop_it_does_and_goes_on(tmp_path):
    whole = interrupted(tmp_path / "whole")
    with pytest.raises(Stopped, match="by SIGUSR1 after step 75"):
        interrupted(tmp_path / "run", 75, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    assert interrupted(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("tensor parallelism", {"parallel_dims": SimpleNamespace(tp_enabled=True)}),
        ("pipeline", {"parallel_dims": SimpleNamespace(pp_enabled=True)}),
        ("several model parts", {"model_parts": [1, 2]}),
        ("CUDA graphs", {"device": torch.device("cuda")}),
    ],
)
def test_what_cannot_be_guarded_is_refused_before_the_first_step(tmp_path, why, change):
    trainer = Trainer(scenario.order())
    trainer.config.training.disable_cuda_graphs = False
    vars(trainer).update(change)
    with pytest.raises(CapabilityError, match=f"cannot be guarded: .*{why}"):
        guarded(trainer, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_hangs_on_the_optimizers_step_is_refused(tmp_path):
    trainer = Trainer(scenario.order())
    trainer.optimizers.register_step_pre_hook(lambda *_: None)
    with pytest.raises(CapabilityError, match="hooks on the optimizers' step"):
        guarded(trainer, tmp_path / "run")


def test_a_run_that_began_without_the_guard_is_refused(tmp_path):
    trainer = Trainer(scenario.order())
    trainer.checkpointer.load = lambda step: vars(trainer).update(step=40)
    with pytest.raises(CapabilityError, match="begins at step 40 of a checkpoint"):
        guarded(trainer, tmp_path / "run")


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(scenario.order(), steps=12)
    exec(scenario.example("torchtitan"), {"config": SimpleNamespace(build=lambda: trainer)})
    assert (tmp_path / "runs/a/decisions.jsonl").exists()
    assert trainer.step == 12


def sharded(model):
    fully_shard(model)
    return model


def replicated(model):
    return replicate(model)


def on_a_rank(rank, world, run_dir, wrap):
    trainer = Trainer(scenario.order(), wrap=wrap)
    guarded(trainer, run_dir)
    check(run_dir, trainer, wrap=wrap)
    return trainer.step


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [sharded, replicated])
def test_two_processes(tmp_path, wrap):
    assert on_ranks(on_a_rank, 2, tmp_path / "run", wrap) == [scenario.STEPS] * 2
