"""Megatron-LM watched, skipped and gone back by restarts, by a stand-in of its interface."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import foreshock
from foreshock.core.errors import CapabilityError, ConfigError, LoopError
from foreshock.durable import RealDisk
from foreshock.integrations import megatron as adapter
from foreshock.run_view import view_run
from tests.integrations import scenario
from tests.integrations.megatron_lm import Megatron
from tests.ranks.processes import on_ranks

NAN_ITERATION = scenario.NAN_AT // scenario.BATCH + 1
TRAIN_ITERS = 130


def start(folder, *, until=None, left_out=None, kill_at=None):
    """Start Megatron once, as the launch script does; the exit code, and what it came to."""
    run_dir, saved = folder / "runs/a", folder / "checkpoints"
    words = ["--save", str(saved), "--load", str(saved), "--train-iters", str(TRAIN_ITERS)]
    for path in sorted(run_dir.glob("megatron-*.args")):
        words += path.read_text().split()
    megatron = Megatron(words, scenario.order())
    if until is not None:
        megatron.args.train_iters = until
    watch = adapter.watch(run_dir, checkpoints=saved)

    def forward_step(batch, model):
        if megatron.args.curr_iteration == kill_at:
            scenario.die()
        return megatron.forward_step(batch, model)

    try:
        if left_out is not None:
            watch.guard._control.limit_gate(0.0, left_out, left_out)
        watch.attach(megatron.optimizer, iteration=lambda: megatron.args.curr_iteration + 1)
        megatron.train(watch.forward_step(forward_step))
    except SystemExit as ended:
        return ended.code, megatron, watch
    finally:
        watch.close()
    return 0, megatron, watch


def run(folder, most=8, **named):
    """Start it again until it ends by itself; the last, how often it went back, what it kept."""
    kept = []
    for restarts in range(most):
        code, megatron, watch = start(folder, **named)
        kept = [one for one in kept if one <= megatron.loaded] + megatron.trained
        if code != adapter.EXIT_CODE:
            return megatron, watch, restarts, kept
    raise AssertionError("it goes back without end")


def bad_iterations():
    return set(range(scenario.BAD_FROM // 8 + 1, scenario.BAD_TO // 8 + 1))


def test_it_skips_goes_back_and_ends_as_megatron_untouched_on_what_survived(tmp_path):
    megatron, watch, restarts, kept = run(tmp_path)
    assert restarts > 0
    assert watch.guard.book.num_rollbacks == restarts
    assert not (bad_iterations() | {NAN_ITERATION}) & set(kept)
    assert set(megatron.args.iterations_to_skip) & bad_iterations()
    assert NAN_ITERATION not in megatron.args.iterations_to_skip  # a skip was enough
    assert len(kept) == len(set(kept)) >= TRAIN_ITERS - 3 * len(bad_iterations())
    left_out = sorted(set(range(1, TRAIN_ITERS + 1)) - set(kept))
    words = ["--train-iters", str(TRAIN_ITERS), "--iterations-to-skip", *map(str, left_out)]
    twin = Megatron(words, scenario.order())
    twin.train()
    for mine, other in zip(*(scenario.weights(one.model) for one in (megatron, twin)), strict=True):
        assert torch.equal(mine, other)
    kinds = [record["kind"] for record in view_run(RealDisk(), tmp_path / "runs/a").records]
    assert {"plan", "quarantine"} & set(kinds)


def test_killed_and_started_again_it_ends_with_the_same_weights(tmp_path):
    whole = run(tmp_path / "whole")[0]
    call = "from pathlib import Path; from tests.integrations.test_megatron import run; "
    scenario.killed(f"{call}run(Path({str(tmp_path / 'killed')!r}), kill_at=75)")
    again = run(tmp_path / "killed")[0]
    assert again.loaded > 0
    for mine, other in zip(*(scenario.weights(one.model) for one in (again, whole)), strict=True):
        assert torch.equal(mine, other)


def test_readings_are_megatrons_own(tmp_path):
    start(tmp_path, until=12)
    norms = []
    twin = Megatron(["--train-iters", "12"], scenario.order())
    step = twin.optimizer.step
    twin.optimizer.step = lambda: norms.append(found := step()) or found
    twin.train()
    data = foreshock.open(tmp_path / "runs/a")
    seen = {name: data.read(f"{name}/global")[f"{name}/global"] for name in ("grad_norm", "lr")}
    assert seen["grad_norm"] == pytest.approx([norm for _, norm, _ in norms], rel=1e-6)
    assert seen["lr"] == pytest.approx([scenario.LR] * 12)


def test_a_checkpoint_from_before_the_end_of_the_record_is_trained_up_to_it(tmp_path):
    start(tmp_path, until=26, left_out=24)
    code, megatron, watch = start(tmp_path, until=40)
    assert code == 0
    assert megatron.trained == [21, 22, 23, *range(25, 41)]
    assert watch.guard.step_number == 40


def test_a_checkpoint_from_after_the_record_is_refused_with_what_to_do(tmp_path):
    start(tmp_path, until=40)
    (tmp_path / "runs/a").rename(tmp_path / "elsewhere")
    start(OtherCheckpoints(tmp_path), until=20)
    with pytest.raises(LoopError, match=r"goes on with 21: start it with .*megatron-\*\.args"):
        start(tmp_path, until=44)
    assert (tmp_path / "runs/a" / adapter.CHECKPOINT_ARGS).read_text() == "--ckpt-step 20\n"
    code, megatron, _ = start(tmp_path, until=44)
    assert (code, megatron.trained[0]) == (0, 21)
    assert not (tmp_path / "runs/a" / adapter.CHECKPOINT_ARGS).exists()  # it has saved since


class OtherCheckpoints:
    """The same run directory, with checkpoints elsewhere."""

    def __init__(self, folder):
        self._folder = folder

    def __truediv__(self, name):
        return self._folder / (f"other-{name}" if name == "checkpoints" else name)


def test_the_policy_orders_nothing_that_megatron_does_not_hear():
    policy = adapter._possible(adapter.standard_recipe()).policy
    assert policy.actions <= {"skip_update", "rollback", "quarantine", "pause", "halt"}
    assert {"rollback", "quarantine", "halt"} <= policy.actions


def test_without_a_checkpoint_to_go_back_to_it_begins_anew(tmp_path):
    watch = adapter.watch(tmp_path / "runs/a", checkpoints=tmp_path / "none")
    watch._next = 11
    watch._write_arguments(restart=True)
    watch.close()
    words = (tmp_path / "runs/a" / adapter.CHECKPOINT_ARGS).read_text().split()
    assert words[0] == "--load"
    assert words[1].endswith("no-checkpoint")


def test_a_loss_that_no_one_tells_is_missed(tmp_path):
    megatron = Megatron([], scenario.order())
    watch = adapter.watch(tmp_path / "runs/a", checkpoints=tmp_path / "checkpoints")
    watch.attach(megatron.optimizer, iteration=lambda: megatron.args.curr_iteration + 1)
    with watch.guard, pytest.raises(LoopError, match="no loss was heard"):
        megatron.train()


def test_what_cannot_be_watched_is_refused(tmp_path):
    watch = adapter.watch(tmp_path / "runs/a", checkpoints=tmp_path / "checkpoints")
    scaled = Megatron([], scenario.order()).optimizer
    scaled.grad_scaler = type("DynamicGradScaler", (), {})()
    with pytest.raises(CapabilityError, match="bf16"):
        watch.attach(scaled, iteration=lambda: 1)
    chained = SimpleNamespace(chained_optimizers=[scaled])
    with pytest.raises(CapabilityError, match="bf16"):
        watch.attach(chained, iteration=lambda: 1)
    with pytest.raises(CapabilityError, match="no prepare_grads, get_grad_norm, param_groups"):
        watch.attach(SimpleNamespace(), iteration=lambda: 1)
    watch.close()


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = str(tmp_path / "checkpoints")
    megatron = Megatron(["--save", saved, "--train-iters", "12"], scenario.order())

    def train_step(forward_step_func, batch):
        return Megatron.train_step(megatron, forward_step_func, batch)

    training = ModuleType("training")
    training.get_args = lambda: megatron.args
    training.setup_model_and_optimizer = lambda: ([megatron.model], megatron.optimizer, None)
    training.train_step = train_step
    package = ModuleType("megatron.training")
    package.training = training
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.training", package)

    def pretrain(forward_step):  # as Megatron's does, which looks its functions up in the module
        training.setup_model_and_optimizer()
        megatron.train_step = lambda _, batch: training.train_step(forward_step, batch)
        megatron.train()

    exec(scenario.example("Megatron-LM"), {})
    pretrain(megatron.forward_step)
    assert megatron.trained == list(range(1, 13))
    assert foreshock.open("runs/a").read("loss/global")["loss/global"].size == 12
    megatron.args.save = None
    with pytest.raises(ConfigError, match="without --save"):
        training.setup_model_and_optimizer()


def on_a_rank(rank, world, folder):
    megatron, _, restarts, kept = run(folder)
    return restarts, megatron.args.iterations_to_skip, kept


@pytest.mark.slow
def test_two_processes(tmp_path):
    found = on_ranks(on_a_rank, 2, tmp_path)
    assert found[0] == found[1]
    assert found[0][0] > 0
    assert not (bad_iterations() | {NAN_ITERATION}) & set(found[0][2])
