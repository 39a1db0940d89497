"""The recovery scenario in fp16, with a scaler on the CPU, in every loop that can have one.

Accelerate, and with it the Trainer, scales on GPUs only, though all that they do with a scaler
works on a CPU: here they are given one. The scale goes back with the run. That of the untouched
twin stands elsewhere, since no step of it was skipped; scales are powers of two.
"""

import pytest
import torch

from tests.integrations import scenario


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=25)


def dtypes(model):
    """Takes the dtypes of what the last layer puts out."""
    seen = set()
    model.head.register_forward_hook(lambda module, args, output: seen.add(output.dtype))
    return seen


def check_scale(scale):
    """It has grown four times, and fallen once, where the step was skipped."""
    assert scale == 2.0 ** (10 + 4 - 1)


class Halved(torch.nn.Module):
    """The model under autocast, as the loops of PyTorch's page on AMP run it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        with torch.autocast("cpu", torch.float16):
            return self.model(**batch)


def test_a_plain_loop(tmp_path):
    from tests.integrations import test_plain as tried  # noqa: PLC0415

    own = scaler()
    model, guard = tried.guarded(tmp_path / "run", scaler=own)
    seen = dtypes(model)
    scenario.train(guard, Halved(model))
    assert guard.book.num_rollbacks > 0
    assert seen == {torch.float16}
    check_scale(own.get_scale())

    def untouched(batches):
        rows, its = scenario.Rows(), scaler()
        twin, (optimizer,), _ = tried.parts()
        for batch in batches:
            some = torch.utils.data.default_collate([rows[row] for row in batch])
            its.scale(Halved(twin)(**some)["loss"]).backward()
            its.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(twin.parameters(), scenario.CLIP)
            its.step(optimizer)
            its.update()
            optimizer.zero_grad()
        return twin

    scenario.check(tmp_path / "run", model, untouched)


def halved_accelerator(accelerate, **options):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="fp16", **options)
    return with_scaler(accelerator)


def with_scaler(accelerator):
    assert accelerator.scaler is None  # else it has learnt to
    accelerator.native_amp, accelerator.scaler = True, scaler()
    return accelerator


@pytest.fixture
def accelerate():
    """The package, without what Accelerators of other tests have left."""
    package = pytest.importorskip("accelerate")
    yield package
    package.state.AcceleratorState._reset_state(reset_partial_state=True)
    package.state.GradientState._reset_state()


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_accelerate(tmp_path, accelerate, accumulate):
    from tests.integrations import test_accelerate as tried  # noqa: PLC0415

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    options = {"gradient_accumulation_steps": accumulate}
    accelerator = halved_accelerator(accelerate, **options)
    parts = tried.prepared(accelerator)
    seen = dtypes(parts[0])
    guard = tried.guarded(accelerator, parts, tmp_path / "run")
    scenario.train(guard, parts[0])
    assert guard.book.num_rollbacks > 0
    assert seen == {torch.float16}
    check_scale(accelerator.scaler.get_scale())
    twin = tried.untouched(halved_accelerator(accelerate, **options))
    scenario.check(tmp_path / "run", parts[0], twin)


def test_accelerate_goes_on_with_the_scale_that_it_had(tmp_path, accelerate):
    from tests.integrations import test_accelerate as tried  # noqa: PLC0415

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    def run(name, *, leave_at=None):
        accelerate.utils.set_seed(scenario.SEED)
        accelerator = halved_accelerator(accelerate)
        parts = tried.prepared(accelerator, dropout=0.1)
        with tried.guarded(accelerator, parts, tmp_path / name) as guard:
            for batch in guard:
                guard.step(parts[0](**batch)["loss"])
                if guard.step_number == leave_at:
                    return None
            return guard.digest(), accelerator.scaler.get_scale()

    whole = run("whole")
    run("run", leave_at=75)
    assert run("run") == whole


def test_the_trainer(tmp_path, accelerate):
    pytest.importorskip("transformers")
    from foreshock.integrations.hf import ForeshockCallback  # noqa: PLC0415
    from tests.integrations import test_hf as tried  # noqa: PLC0415

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    def trainer(name, model, rows, **options):
        made = tried.trainer(tmp_path / name, model, rows, fp16=True, **options)
        with_scaler(made.accelerator)
        return made

    model = scenario.model()
    seen = dtypes(model)
    guarded = trainer("out", model, scenario.Rows())
    callback = ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()
    assert callback.guard.book.num_rollbacks > 0
    assert seen == {torch.float16}
    check_scale(guarded.accelerator.scaler.get_scale())

    def untouched(batches):
        rows = scenario.Rows()
        flat = [rows[row] for batch in batches for row in batch]
        twin = scenario.model()
        plain = trainer("twin", twin, flat, max_steps=len(batches))
        plain._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(flat)
        plain.train()
        return twin

    scenario.check(tmp_path / "run", model, untouched)


def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    from lightning.pytorch.plugins import MixedPrecision  # noqa: PLC0415

    from tests.integrations import test_lightning as tried  # noqa: PLC0415

    def half():
        return {"plugins": MixedPrecision("16-mixed", "cpu", scaler())}

    module, callback = tried.Module(), tried.guard_callback(tmp_path)
    seen = dtypes(module.model)
    guarded = tried.trainer(tmp_path, callback, **half())
    guarded.fit(module, tried.loader(scenario.Rows(), shuffle=True))
    assert callback.guard.book.num_rollbacks > 0
    assert seen == {torch.float16}
    check_scale(guarded.precision_plugin.scaler.get_scale())
    scenario.check(tmp_path / "run", module, tried.untouched(tmp_path, **half()))


def test_fabric(tmp_path):
    pytest.importorskip("lightning")
    from lightning.fabric.plugins.precision.amp import MixedPrecision  # noqa: PLC0415

    from tests.integrations import test_fabric as tried  # noqa: PLC0415

    def half():
        return tried.fabric_of(plugins=MixedPrecision("16-mixed", "cpu", scaler()))

    fabric = half()
    parts = tried.set_up(fabric)
    seen = dtypes(parts[0].module)
    guard = tried.guarded(fabric, parts, tmp_path / "run")
    scenario.train(guard, parts[0])
    assert guard.book.num_rollbacks > 0
    assert seen == {torch.float16}
    check_scale(fabric.strategy.precision.scaler.get_scale())
    scenario.check(tmp_path / "run", parts[0], tried.untouched(half()))
