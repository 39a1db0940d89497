"""Lightning's Trainer under the Guard, with the real package."""

import dataclasses
import os

import pytest
import torch

lightning = pytest.importorskip("lightning")

from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from lightning.pytorch.strategies import FSDPStrategy  # noqa: E402

import foreshock  # noqa: E402
from foreshock.core.errors import CapabilityError, LoopError, RunDirError  # noqa: E402
from foreshock.core.policy import Policy  # noqa: E402
from foreshock.integrations.lightning import ForeshockCallback  # noqa: E402
from foreshock.recipes import Cadence  # noqa: E402
from tests.integrations import scenario  # noqa: E402
from tests.ranks.processes import on_ranks  # noqa: E402


class Module(lightning.LightningModule):
    def __init__(self, dropout=0.0, rate=lambda step: 1.0):
        super().__init__()
        self.model = scenario.model(dropout)
        self.rate = rate
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.trainer.global_step, self.current_epoch, batch_idx))
        loss = self.model(**batch)["loss"]
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=scenario.LR)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def trainer(out, *callbacks, **options):
    return lightning.Trainer(
        **{
            "default_root_dir": out,
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": -1,
            "max_steps": scenario.STEPS,
            "gradient_clip_val": scenario.CLIP,
            "callbacks": list(callbacks),
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


def loader(rows, size=scenario.BATCH, **options):
    return torch.utils.data.DataLoader(rows, batch_size=size, **options)


def guard_callback(tmp_path, **options):
    return ForeshockCallback(
        tmp_path / "run", **{"recipe": scenario.recipe(), "seed": scenario.SEED, **options}
    )


def untouched(tmp_path, size=scenario.BATCH, **options):
    def train(batches):
        rows = scenario.Rows()
        flat = [rows[row] for batch in batches for row in batch]
        module = Module()
        plain = trainer(tmp_path / "twin", max_steps=len(batches), **options)
        plain.fit(module, loader(flat, size))
        return module

    return train


@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param(8, {}, id="plain", marks=pytest.mark.slow),
        pytest.param(4, {"accumulate_grad_batches": 2}, id="accumulated"),
        pytest.param(8, {"precision": "bf16-mixed"}, id="bf16", marks=pytest.mark.slow),
    ],
)
def test_skips_rolls_back_and_ends_as_an_untouched_trainer(tmp_path, size, options):
    module, callback = Module(), guard_callback(tmp_path)
    guarded = trainer(tmp_path, callback, **options)
    guarded.fit(module, loader(scenario.Rows(), size, shuffle=True))
    assert guarded.global_step == scenario.STEPS
    assert callback.guard.book.num_rollbacks > 0
    scenario.check(tmp_path / "run", module, untouched(tmp_path, size, **options))


class Heard(lightning.Callback):
    """Which epochs began, ended and were validated."""

    def __init__(self):
        self.began, self.ended, self.validated = [], [], []

    def on_train_epoch_start(self, trainer, pl_module):
        self.began.append(trainer.current_epoch)

    def on_train_epoch_end(self, trainer, pl_module):
        self.ended.append(trainer.current_epoch)

    def on_validation_start(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.validated.append((trainer.current_epoch, trainer.global_step))


class Validated(Module):
    """Validates, with a schedule that goes by epochs and one by a measure."""

    def validation_step(self, batch, batch_idx):
        self.log("held_out", self.model(**batch)["loss"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=scenario.LR)
        epochs = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        measured = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [epochs, {"scheduler": measured, "monitor": "held_out"}]


EPOCH = 11


def held_out():
    return loader(torch.utils.data.Subset(scenario.Rows(), range(3000, 3016)))


def test_epochs_go_back_with_the_run(tmp_path):
    module, heard, callback = Validated(), Heard(), guard_callback(tmp_path)
    options = {"limit_train_batches": EPOCH, "max_epochs": 8, "max_steps": -1}
    guarded = trainer(tmp_path, callback, heard, **options)
    guarded.fit(module, loader(scenario.Rows(), shuffle=True), held_out())
    assert (guarded.global_step, guarded.current_epoch) == (8 * EPOCH, 8)
    assert callback.guard.book.num_rollbacks > 0
    assert len(module.seen) > 8 * EPOCH
    last = {step: (epoch, batch) for step, epoch, batch in module.seen}
    assert last == {step: divmod(step, EPOCH) for step in range(8 * EPOCH)}
    assert heard.ended == [0, 1, 2, 3, 3, 4, 5, 6, 7]  # the run went back from epoch 4 into 3
    assert heard.began == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert [epoch for epoch, _ in heard.validated] == heard.ended
    assert heard.validated[-1] == (7, 8 * EPOCH)
    epochs, measured = guarded.lr_scheduler_configs
    assert epochs.scheduler.last_epoch == measured.scheduler.last_epoch == 8


class Weights(lightning.Callback):
    """The weights after each step, the last ones where a step was made again.

    Meanwhile what the Trainer counts must agree.
    """

    def __init__(self):
        self.after = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.after[trainer.global_step] = scenario.weights(pl_module)
        loop = trainer.fit_loop.epoch_loop
        for progress in (loop.batch_progress.total, loop.batch_progress.current):
            assert progress.ready == progress.started + 1 == progress.completed + 1
        assert loop._batches_that_stepped == trainer.global_step

    def on_fit_end(self, trainer, pl_module):
        self.after[trainer.global_step] = scenario.weights(pl_module)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"max_epochs": 4, "max_steps": -1, "limit_train_batches": 12}, id="epoch"),
        pytest.param(
            {"max_steps": 48, "limit_train_batches": 6, "val_check_interval": 2}, id="step"
        ),
    ],
)
def test_the_last_steps_are_judged_before_the_end(tmp_path, options):
    """They send the run back, as the same steps do in a run that goes on."""
    ends = []
    longer = {**options, "max_epochs": -1, "max_steps": 60}
    for name, limits in (("long", longer), ("end", options)):
        lightning.seed_everything(scenario.SEED, verbose=False)
        weights, heard = Weights(), Heard()
        callback = guard_callback(tmp_path / name)
        guarded = trainer(tmp_path, callback, weights, heard, **limits)
        guarded.fit(Validated(dropout=0.1), loader(scenario.Rows(), shuffle=True), held_out())
        steps = [one["step"] for one in callback.guard.records if one["kind"] == "plan"]
        assert 48 in steps
        assert sum(step == 40 for _, step in heard.validated) == (options["max_steps"] == 48)
        ends.append(weights.after[48])
    assert guarded.global_step == guarded.fit_loop.epoch_loop._batches_that_stepped == 48
    batches = guarded.fit_loop.epoch_loop.batch_progress.total
    assert batches.ready == batches.started == batches.processed == batches.completed == 48
    assert all(map(torch.equal, *ends))


def test_a_run_at_its_end_goes_on_when_more_is_asked_for(tmp_path):
    seen = []
    for max_epochs in (2, 3):
        module, options = Module(), {"limit_train_batches": 6, "max_steps": -1}
        guarded = trainer(tmp_path, guard_callback(tmp_path), max_epochs=max_epochs, **options)
        guarded.fit(module, loader(scenario.Rows(), shuffle=True))
        assert guarded.current_epoch == max_epochs
        seen += module.seen
    assert seen == [(step, *divmod(step, 6)) for step in range(18)]


def interrupted(run_dir, kill_at=None, checkpoint=None, disk_steps=20):
    """Accumulates over epochs that do not hold whole steps, and validates within them."""
    lightning.seed_everything(scenario.SEED, verbose=False)

    class Killing(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == kill_at:
                scenario.die()

    cadence = Cadence(  # goes on from the same step however slow the disk is
        memory_steps=5, memory_keep=3, disk_steps=disk_steps, disk_keep=3, asynchronous=False
    )
    recipe = dataclasses.replace(scenario.recipe(), cadence=cadence)
    callback = ForeshockCallback(run_dir, recipe=recipe)
    options = {"accumulate_grad_batches": 2, "limit_train_batches": 15, "val_check_interval": 4}
    guarded = trainer(run_dir.parent, callback, Killing(), max_steps=90, **options)
    module = Validated(dropout=0.1)
    rows = loader(scenario.Rows(), 4, shuffle=True)
    guarded.fit(module, rows, held_out(), ckpt_path=checkpoint)
    last = {step: place for step, *place in module.seen}
    return callback.guard.digest(), last


def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path):
    """Whatever checkpoint of the Trainer's own it is given."""
    plain = trainer(tmp_path, max_steps=33)
    plain.fit(Validated(), loader(scenario.Rows()), held_out())
    plain.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(RunDirError, match="resumes at step 33"):
        interrupted(tmp_path / "new", checkpoint=tmp_path / "other.ckpt")
    whole, last = interrupted(tmp_path / "whole")
    call = "from pathlib import Path; from tests.integrations.test_lightning import interrupted; "
    scenario.killed(f"{call}interrupted(Path({str(tmp_path / 'run')!r}), 75)")
    again, places = interrupted(tmp_path / "run", checkpoint=tmp_path / "other.ckpt")
    assert again == whole
    assert 20 <= min(places) <= 75
    assert places == {step: place for step, place in last.items() if step in places}
    assert interrupted(tmp_path / "run")[1] == {}  # at its end there is nothing to do


class Norms(lightning.Callback):
    def __init__(self, take):
        self.take, self.norms = take, []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        grads = [parameter.grad for parameter in pl_module.parameters()]
        self.norms.append(float(torch.nn.utils.get_total_norm(grads)))


def placed_rows(number):
    rows = scenario.Rows()
    return [rows[row] for row in scenario.order()[:number]]


def test_it_clips_as_the_trainer_does_and_has_the_norm_from_before(tmp_path):
    options = {"gradient_clip_val": 0.2, "max_steps": 20}
    module, plain, callback = Module(), Module(), guard_callback(tmp_path)
    norms = Norms(None)
    trainer(tmp_path, norms, **options).fit(plain, loader(placed_rows(160)))
    trainer(tmp_path, callback, **options).fit(module, loader(scenario.Rows(), shuffle=True))
    assert min(norms.norms) > 0.2
    seen = foreshock.open(tmp_path / "run").read("grad_norm/global")["grad_norm/global"]
    assert seen == pytest.approx(norms.norms)
    for mine, other in zip(scenario.weights(module), scenario.weights(plain), strict=True):
        torch.testing.assert_close(mine, other)


def half():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=7)
    return {"plugins": MixedPrecision("16-mixed", "cpu", scaler), "max_steps": 20}


def test_fp16_passes_through_the_scaler(tmp_path):
    module, plain = Module(), Module()
    trainer(tmp_path, **half()).fit(plain, loader(placed_rows(160)))
    guarded = trainer(tmp_path, guard_callback(tmp_path), **half())
    guarded.fit(module, loader(scenario.Rows(), shuffle=True))
    assert guarded.precision_plugin.scaler.get_scale() == 2.0**14
    assert all(map(torch.equal, scenario.weights(module), scenario.weights(plain)))
    losses = foreshock.open(tmp_path / "run").read("loss/global")["loss/global"]
    batch = torch.utils.data.default_collate(placed_rows(8))
    expected = float(scenario.model()(**batch)["loss"].detach())
    assert losses[0] == pytest.approx(expected, rel=0.01)  # not of what was scaled


def test_checkpoints_of_the_trainer_hold_what_counts(tmp_path):
    """A file of a step that was made again is written again."""
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path / "kept", "{step}", every_n_train_steps=44, save_top_k=-1
    )
    weights, module = Weights(), Module()
    options = {"enable_checkpointing": True, "max_steps": 90}
    guarded = trainer(tmp_path, guard_callback(tmp_path), weights, saving, **options)
    guarded.fit(module, loader(scenario.Rows(), shuffle=True))
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["step=44.ckpt", "step=88.ckpt"]
    for name, step in zip(names, (44, 88), strict=True):
        saved = torch.load(tmp_path / "kept" / name, weights_only=True)
        assert saved["global_step"] == step
        held = list(saved["state_dict"].values())
        assert all(map(torch.equal, held, weights.after[step]))


class Counting:
    total = 0

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def test_state_of_ones_own_goes_back_too(tmp_path):
    counting, callback = Counting(), guard_callback(tmp_path)

    class Tracking(Module):
        def on_train_start(self):
            callback.guard.track("counting", counting)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            counting.total += 1

    guarded = trainer(tmp_path, callback, max_steps=70)
    guarded.fit(Tracking(), loader(scenario.Rows(), shuffle=True))
    assert callback.guard.book.num_rollbacks > 0
    assert counting.total == 70


def attributes(guarded):
    owners = (guarded.strategy, guarded.precision_plugin, guarded.fit_loop._data_source)
    return [set(vars(owner)) for owner in owners]


def test_everything_is_put_back_after_fit(tmp_path):
    class Failing(Module):
        fails_at = 5

        def training_step(self, batch, batch_idx):
            if self.trainer.global_step == self.fails_at:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    guarded = trainer(tmp_path, guard_callback(tmp_path), max_steps=10)
    before = attributes(guarded)
    rows = loader(scenario.Rows())
    with pytest.raises(ZeroDivisionError):
        guarded.fit(Failing(), rows)
    assert attributes(guarded) == before
    module = Failing()
    module.fails_at = None
    guarded.fit(module, rows)
    assert attributes(guarded) == before
    assert guarded.global_step == 10
    assert len(module._forward_hooks) == len(module.model.head._forward_hooks) == 0


def test_a_step_without_a_loss_is_an_error(tmp_path):
    class Silent(Module):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(LoopError, match="training_step returned None"):
        trainer(tmp_path, guard_callback(tmp_path)).fit(Silent(), loader(scenario.Rows()))


class ByHand(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class OwnClipping(Module):
    def configure_gradient_clipping(self, optimizer, **_):
        pass


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from placed_rows(240)


def weighted():
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(4000), 4000)
    return loader(scenario.Rows(), sampler=sampler)


@pytest.mark.parametrize(
    ("module", "data", "options", "why"),
    [
        (ByHand, loader, {"gradient_clip_val": None}, "manual optimization: use"),
        (OwnClipping, loader, {}, "clipping in a hook: use"),
        (Module, loader, {"gradient_clip_algorithm": "value"}, "clipping by value: use"),
        (Module, loader, {"reload_dataloaders_every_n_epochs": 1}, "other data under way"),
        (Module, loader, {"overfit_batches": 4}, "same few batches"),
        (Module, lambda rows: loader(Rows()), {}, "a Rows without __getitem__"),
        (Module, lambda rows: weighted(), {}, "WeightedRandomSampler has an order of its own"),
        (Module, lambda rows: [loader(rows), loader(rows)], {}, "a list, not from one"),
        (Module, lambda rows: rows, {}, "a Rows, not from one DataLoader"),
        (Module, lambda rows: loader(rows, None), {}, "batches are made by a NoneType"),
    ],
)
def test_what_cannot_be_guarded_is_refused_before_the_first_step(
    tmp_path, module, data, options, why
):
    built = module()
    guarded = trainer(tmp_path, guard_callback(tmp_path), **options)
    with pytest.raises(CapabilityError, match=why):
        guarded.fit(built, data(scenario.Rows()))
    assert not built.seen
    assert not (tmp_path / "run").exists()


def test_strategies_and_callbacks_that_cannot_be_guarded_are_refused(tmp_path):
    swa = lightning.pytorch.callbacks.StochasticWeightAveraging(swa_lrs=0.1)
    with pytest.raises(CapabilityError, match="its average would keep what is taken back"):
        trainer(tmp_path, guard_callback(tmp_path), swa).fit(Module(), loader(scenario.Rows()))
    callback = guard_callback(tmp_path)
    guarded = trainer(tmp_path, callback)
    guarded.strategy.__class__ = type("FSDPStrategy", (FSDPStrategy,), {})
    with pytest.raises(CapabilityError, match="FSDP1"):
        callback.setup(guarded, Module(), "fit")


def test_data_that_cannot_go_back_is_watched_and_its_steps_are_skipped(tmp_path):
    rows = scenario.Rows()
    data = [*placed_rows(100), rows[rows.nan], *placed_rows(139)]

    class Once(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from data

    watching = dataclasses.replace(scenario.recipe(), policy=Policy(watch_only=True))
    callback = guard_callback(tmp_path, rewind=False, recipe=watching)
    module, weights = Module(), Weights()
    options = {"max_epochs": 2, "max_steps": -1, "accumulate_grad_batches": 2}
    guarded = trainer(tmp_path, callback, weights, **options)
    guarded.fit(module, loader(Once(), 4))
    assert guarded.global_step == callback.guard.step_number == 60
    skips = [one["step"] for one in callback.guard.records if one["kind"] == "skip"]
    assert skips == [13, 43]
    assert all(map(torch.equal, weights.after[12], weights.after[13]))
    assert not all(map(torch.equal, weights.after[13], weights.after[14]))
    assert callback.guard.records[-1]["kind"] == "run_finished"
    with pytest.raises(CapabilityError, match="quarantine_data"):
        trainer(tmp_path, ForeshockCallback(tmp_path / "b", rewind=False)).fit(
            Module(), loader(Once(), 4)
        )


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"lightning": lightning, "module": Module(), "loader": loader(placed_rows(240))}
    exec(scenario.example("Lightning"), names)
    assert names["trainer"].global_step == 60
    assert (tmp_path / "runs/a/decisions.jsonl").exists()


def on_a_rank(rank, world, folder):
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    options = {"devices": world, "strategy": "ddp", "accumulate_grad_batches": 2}
    module, callback = Module(), guard_callback(folder)
    guarded = trainer(folder, callback, **options)
    guarded.fit(module, loader(scenario.Rows(), 2, shuffle=True))
    assert (guarded.global_rank, guarded.world_size) == (rank, world)

    def train(batches):
        rows = scenario.Rows()
        flat = [rows[row] for batch in batches for row in batch]
        own = [row for start in range(2 * rank, len(flat), 4) for row in flat[start : start + 2]]
        once = {"use_distributed_sampler": False, "max_steps": len(batches)}
        plain = trainer(folder, **options, **once)
        twin = Module()
        plain.fit(twin, loader(own, 2))
        return twin

    scenario.check(folder / "run", module, train)
    return callback.guard.book.num_rollbacks


@pytest.mark.slow
def test_two_processes(tmp_path):
    found = on_ranks(on_a_rank, 2, tmp_path)
    assert found[0] == found[1] > 0
