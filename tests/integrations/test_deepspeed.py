"""DeepSpeed engines under the Guard, with the real package: gloo on the CPU.

DeepSpeed compiles a collective of its own at its first start on a machine (minutes).
"""

import os
import random
import signal

import numpy as np
import pytest
import torch
import torch.distributed as dist

pytest.importorskip("deepspeed")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.utils import safe_get_full_fp32_param

from foreshock.core.errors import (
    CapabilityError,
    ConfigError,
    RunDirError,
    SnapshotError,
    Stopped,
)
from foreshock.integrations import deepspeed as adapter
from tests.integrations import scenario
from tests.ranks.processes import on_ranks


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A group of one rank for the tests of this file."""
    join(0, 1)
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def join(rank, world):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def made(stage, *, accumulate=1, clip=scenario.CLIP, dropout=0.0, bf16=False, **config):
    model = scenario.model(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=scenario.LR)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    zero = {"stage": stage, **config.pop("zero_optimization", {})}
    settings = {
        "train_batch_size": scenario.BATCH,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": clip,
        "zero_optimization": zero,
        "steps_per_print": None,
        "bf16": {"enabled": bf16},
        **config,
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, config=settings
    )
    return engine


def guarded(engine, run_dir, **options):
    defaults = {"recipe": scenario.recipe(), "max_steps": scenario.STEPS}
    accumulate = engine.gradient_accumulation_steps()
    rank, world = dist.get_rank(), dist.get_world_size()
    stream = scenario.stream(scenario.BATCH // accumulate, rank, world)
    return adapter.guard(engine, stream, run_dir=run_dir, **{**defaults, **options})


def whole(engine):
    """The model as it would be without ZeRO, in fp32."""
    twin = scenario.model()
    state = {name: safe_get_full_fp32_param(one) for name, one in engine.module.named_parameters()}
    twin.load_state_dict(engine.module.state_dict() if None in state.values() else state)
    return twin


def untouched(stage, *, norms=None, **options):
    """The loop of DeepSpeed's documentation; `norms` takes the engine's."""
    rows, norms = scenario.Rows(), [] if norms is None else norms

    def run(batches):
        engine = made(stage, **options)
        size = scenario.BATCH // engine.gradient_accumulation_steps()
        share = size // dist.get_world_size()
        flat = [rows[row] for batch in batches for row in batch]
        for start in range(dist.get_rank() * share, len(flat), size):
            batch = torch.utils.data.default_collate(flat[start : start + share])
            engine.backward(engine(**batch)["loss"])
            engine.step()
            norms.append(engine.get_global_grad_norm())
        return whole(engine)

    return run


SPLIT = {"stage3_param_persistence_threshold": 0, "sub_group_size": 500}
CASES = [
    pytest.param(0, {}, id="zero0"),
    pytest.param(1, {"accumulate": 2}, id="zero1", marks=pytest.mark.slow),
    pytest.param(2, {"accumulate": 2}, id="zero2"),
    pytest.param(2, {"bf16": True}, id="zero2-bf16", marks=pytest.mark.slow),
    pytest.param(3, {"accumulate": 2}, id="zero3", marks=pytest.mark.slow),
    pytest.param(3, {"bf16": True, "zero_optimization": SPLIT}, id="zero3-bf16-split"),
]


@pytest.mark.parametrize(("stage", "options"), CASES)
def test_skips_rolls_back_and_ends_as_an_untouched_engine(tmp_path, stage, options):
    engine = made(stage, **options)
    guard = guarded(engine, tmp_path / "run")
    scenario.train(guard, engine)
    assert guard.book.num_rollbacks > 0
    assert engine.global_steps == engine.lr_scheduler.last_epoch == scenario.STEPS
    assert engine.skipped_steps == 1
    assert engine.global_samples == scenario.STEPS * scenario.BATCH
    scenario.check(tmp_path / "run", whole(engine), untouched(stage, **options))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_it_clips_as_the_engine_does_and_has_the_norm_from_before(tmp_path, stage):
    options = {"accumulate": 2, "clip": 0.2}
    engine, norms, expected, told = made(stage, **options), [], [], []

    def after_step(guard):
        norms.append(guard.grad_norm)
        told.append(engine.get_global_grad_norm())

    scenario.train(guarded(engine, tmp_path / "run", max_steps=10), engine, after_step)
    placed = scenario.order()
    batches = [placed[start : start + scenario.BATCH] for start in range(0, 80, scenario.BATCH)]
    twin = untouched(stage, norms=expected, **options)(batches)
    if stage:  # without ZeRO an engine keeps none
        assert [float(one) for one in norms[1::2]] == pytest.approx(
            list(map(float, expected[1::2]))
        )
    assert min(map(float, norms[1::2])) > 0.2
    assert told[1::2] == norms[1::2]
    for mine, other in zip(scenario.weights(whole(engine)), scenario.weights(twin), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_first_step_that_is_skipped_leaves_nothing_behind(tmp_path, stage):
    engine = made(stage, accumulate=2)
    before = scenario.weights(whole(engine))
    with guarded(engine, tmp_path / "run") as guard:
        for _ in range(2):
            verdict = guard.step(engine(**next(guard))["loss"] * float("nan"))
    assert verdict.committed is False
    assert engine.skipped_steps == engine.global_steps == engine.lr_scheduler.last_epoch == 1
    assert all(map(torch.equal, before, scenario.weights(whole(engine))))
    for state in engine.basic_optimizer.state.values():
        assert all(not torch.any(value) for value in state.values())
    batch = torch.utils.data.default_collate([scenario.Rows()[row] for row in range(4)])
    trained, fresh = engine, made(stage, accumulate=2)
    for one in trained, fresh:  # and nothing is left of its gradients
        for _ in range(2):
            one.backward(one(**batch)["loss"])
            one.step()
    for mine, other in zip(
        *(scenario.weights(whole(one)) for one in (trained, fresh)), strict=True
    ):
        assert torch.equal(mine, other)


def interrupted(run_dir, stage, kill_at=None, leave_at=None, stop_at=None):
    engine = made(stage, dropout=0.1, accumulate=2)
    for seed in random.seed, np.random.seed, torch.manual_seed:
        seed(scenario.SEED + dist.get_rank())
    guard = guarded(engine, run_dir)
    with guard:
        for batch in guard:
            guard.step(engine(**batch)["loss"])
            if guard.step_number == kill_at:
                scenario.die()
            if guard.step_number == stop_at:
                os.kill(os.getpid(), signal.SIGUSR1)
            if guard.step_number == leave_at:
                return None
        return guard.digest(), engine.global_steps, engine.skipped_steps


def alone_and_killed(folder, *args):
    join(0, 1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    interrupted(f"{folder}/run", *args)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("stage", [pytest.param(0, marks=SLOW), 2, pytest.param(3, marks=SLOW)])
def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path, stage):
    whole = interrupted(tmp_path / "whole", stage)
    call = "from tests.integrations.test_deepspeed import alone_and_killed as go; "
    scenario.killed(f"{call} go({str(tmp_path)!r}, {stage}, 75)")
    assert interrupted(tmp_path / "run", stage) == whole


@pytest.mark.usefixtures("no_handlers")
@pytest.mark.parametrize("stage", [2, 3])
def test_asked_to_stop_it_does_and_goes_on(tmp_path, stage):
    whole = interrupted(tmp_path / "whole", stage)
    with pytest.raises(Stopped, match="by SIGUSR1 after step 33"):
        interrupted(tmp_path / "run", stage, stop_at=33)
    assert interrupted(tmp_path / "run", stage) == whole


def test_a_run_of_another_stage_or_layout_is_not_taken_up(tmp_path):
    scenario.train(guarded(engine := made(2), tmp_path / "run", max_steps=3), engine)
    with pytest.raises(RunDirError, match="ZeRO-2 on 1 rank"):
        guarded(made(1), tmp_path / "run")
    engine = made(2)
    engine.param_names = dict(zip(engine.param_names, "abcdefgh", strict=False))
    with pytest.raises(SnapshotError, match="laid out otherwise"):
        guarded(engine, tmp_path / "run")


def test_weights_that_are_not_trained_and_several_groups(tmp_path):
    def engine_of(stage):
        model = scenario.model()
        model.embedding.weight.requires_grad_(False)
        groups = [
            {"params": list(model.hidden.parameters()), "weight_decay": 0.1},
            {"params": list(model.head.parameters()), "lr": 1e-3},
        ]
        config = {"train_batch_size": scenario.BATCH, "zero_optimization": {"stage": stage}}
        optimizer = torch.optim.AdamW(groups, lr=scenario.LR)
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

    engine = engine_of(2)
    scenario.train(guarded(engine, tmp_path / "run", max_steps=30), engine)
    twin, rows = engine_of(2), scenario.Rows()
    for batch in scenario.survivors(tmp_path / "run"):
        twin.backward(
            twin(**torch.utils.data.default_collate([rows[one] for one in batch]))["loss"]
        )
        twin.step()
    for mine, other in zip(engine.module.parameters(), twin.module.parameters(), strict=True):
        assert torch.equal(mine, other)
    with pytest.raises(CapabilityError, match="not trained, under stage 3"):
        guarded(engine_of(3), tmp_path / "other")


@pytest.mark.parametrize("stage", [1, 3])
def test_noise_on_the_weights_reaches_the_model(tmp_path, stage):
    engine = made(stage)
    with guarded(engine, tmp_path / "run", max_steps=3) as guard:
        batch, before = next(guard), scenario.weights(whole(engine))
        guard.step(engine(**batch)["loss"])
        guard.guard._control.perturb_weights(0.1, first_step=2)
        between = scenario.weights(whole(engine))
        next(guard)
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            seen = scenario.weights(engine.module)
    after = scenario.weights(whole(engine))
    assert not any(map(torch.equal, before, between))
    assert not any(map(torch.equal, between, after))
    assert all(map(torch.equal, seen, after))


@pytest.mark.parametrize(
    ("why", "stage", "config"),
    [
        ("fp16: the engine", 1, {"fp16": {"enabled": True}}),
        ("bf16 under stage 0", 0, {"bf16": True}),
        ("offloading", 2, {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}),
        ("other optimizers around", 1, {"bf16": True, "data_types": {"grad_accum_dtype": "fp32"}}),
        ("hpZ", 3, {"zero_optimization": {"zero_hpz_partition_size": 2}}),
        ("quantized", 3, {"zero_optimization": {"zero_quantized_gradients": True}}),
        ("data efficiency", 1, {"data_efficiency": {"enabled": True}}),
        ("managed outside", 1, {"managed_gradient_accumulation": False}),
    ],
)
def test_what_cannot_be_guarded_is_refused_before_the_first_step(
    tmp_path, monkeypatch, why, stage, config
):
    try:
        engine = made(stage, **config)
    except Exception:  # it needs a GPU: another engine with this configuration
        engine, other = made(stage), config.get("zero_optimization", {})
        settings = {**engine._config._param_dict, **config}
        settings["zero_optimization"] = {"stage": stage, **other}
        monkeypatch.setattr(engine, "_config", deepspeed.DeepSpeedConfig(settings))
    with pytest.raises(CapabilityError, match=f"cannot be guarded: .*{why}"):
        guarded(engine, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("why", "name", "value"),
    [
        ("pipeline", "pipeline_parallelism", True),
        ("expert", "has_moe_layers", True),
        ("sequence", "sequence_parallel_size", 2),
        ("1-bit", "basic_optimizer", type("OnebitAdam", (torch.optim.Adam,), {})),
        ("other optimizers around", "optimizer", type("Other", (torch.optim.Adam,), {})),
    ],
)
def test_an_engine_that_is_no_plain_one_is_refused(tmp_path, monkeypatch, why, name, value):
    engine = made(1)
    if isinstance(value, type):
        value = value([torch.nn.Parameter(torch.zeros(1))])
    monkeypatch.setattr(engine, name, value)
    with pytest.raises(CapabilityError, match=f"cannot be guarded: .*{why}"):
        guarded(engine, tmp_path / "run")


def test_what_the_configuration_says_is_not_said_twice(tmp_path):
    with pytest.raises(ConfigError, match="clip: set it in DeepSpeed's configuration"):
        guarded(made(0), tmp_path / "run", clip=1.0)
    with pytest.raises(ConfigError, match="the engine is a Model"):
        adapter.guard(scenario.model(), scenario.stream(), run_dir=tmp_path / "run")


def test_an_engine_within_a_step_is_refused(tmp_path):
    engine = made(1, accumulate=2)
    batch = torch.utils.data.default_collate([scenario.Rows()[row] for row in range(4)])
    engine.backward(engine(**batch)["loss"])
    engine.step()
    with pytest.raises(CapabilityError, match="within a step"):
        guarded(engine, tmp_path / "run")


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = scenario.model()
    config = {"train_batch_size": 64, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    names = {"model": model, "config": config, "dataset": scenario.Rows()}
    names |= {"optimizer": torch.optim.AdamW(model.parameters(), lr=scenario.LR)}
    names |= {"loss_fn": lambda model, batch: model(**batch)["loss"]}
    exec(scenario.example("DeepSpeed"), names)
    assert names["guard"].step_number > 50
    assert (tmp_path / "runs/a/decisions.jsonl").exists()


def on_a_rank(rank, world, run_dir, stage, options):
    join(rank, world)
    engine = made(stage, **options)
    guard = guarded(engine, run_dir)
    scenario.train(guard, engine)
    scenario.check(run_dir, whole(engine), untouched(stage, **options))
    return guard.book.num_rollbacks, guard.step_number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (0, {}),
        (1, {"bf16": True}),
        (2, {"accumulate": 2}),
        (3, {"accumulate": 2, "zero_optimization": SPLIT}),
    ],
)
def test_two_processes(tmp_path, stage, options):
    found = on_ranks(on_a_rank, 2, tmp_path / "run", stage, options)
    assert found[0] == found[1]
    assert found[0][0] > 0


def left_and_resumed(rank, world, folder, stage):
    join(rank, world)
    expected = interrupted(folder / "whole", stage)
    interrupted(folder / "run", stage, leave_at=75)
    return expected, interrupted(folder / "run", stage)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_two_processes_go_on_exactly(tmp_path, stage):
    for expected, found in on_ranks(left_and_resumed, 2, tmp_path, stage):
        assert found == expected
