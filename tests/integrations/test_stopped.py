"""A signal in a framework's loop: it ends in its own way, `Stopped` comes out, and it goes on."""

import json
import os
import signal

import pytest
import torch

from foreshock.core.errors import Stopped
from tests.integrations import scenario

STEPS = 30


class Asking(torch.utils.data.Dataset):
    """The rows; the process is asked to stop when one of them is read."""

    def __init__(self, at=0):
        self.rows, self.at, self.read = scenario.Rows(), at, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.read += 1
        if self.read == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.rows[index]


pytestmark = pytest.mark.usefixtures("no_handlers")


def end_of(run_dir):
    return [json.loads(line) for line in (run_dir / "decisions.jsonl").read_text().splitlines()][-1]


def same(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(scenario.weights(one), scenario.weights(other), strict=True)
    )


def test_the_trainer(tmp_path):
    pytest.importorskip("transformers")
    from transformers import TrainerCallback  # noqa: PLC0415

    from foreshock.integrations.hf import ForeshockCallback  # noqa: PLC0415
    from tests.integrations.test_hf import trainer  # noqa: PLC0415

    class Ends(TrainerCallback):
        seen = 0

        def on_train_end(self, *_, **__):
            Ends.seen += 1

    def train(name, at=0):
        model = scenario.model(dropout=0.1)
        options = {"gradient_accumulation_steps": 2, "max_steps": STEPS, "eval_strategy": "epoch"}
        options["eval_dataset"] = Asking()
        guarded = trainer(tmp_path / "out", model, Asking(at), **options)
        guarded.add_callback(Ends())
        callback = ForeshockCallback(tmp_path / name, recipe=scenario.recipe()).attach(guarded)
        return model, guarded, callback

    whole, guarded, _ = train("whole")
    guarded.train()
    _, guarded, callback = train("run", at=16 * 11 + 3)
    with pytest.raises(Stopped, match="by SIGTERM after step 12"):
        guarded.train()
    assert Ends.seen == 2  # it ended in its own way
    assert not any("eval_loss" in one for one in guarded.state.log_history)
    assert callback.guard.stopped
    assert end_of(tmp_path / "run")["kind"] == "run_stopped"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    again, guarded, callback = train("run")
    guarded.train()
    assert callback.guard.stopped is None
    assert same(again, whole)


def test_while_the_trainer_evaluates(tmp_path):
    pytest.importorskip("transformers")
    from foreshock.integrations.hf import ForeshockCallback  # noqa: PLC0415
    from tests.integrations.test_hf import trainer  # noqa: PLC0415

    rows = [scenario.Rows()[index] for index in range(80)]
    held_out = Asking(at=5)
    options = {"max_steps": 40, "eval_strategy": "steps", "eval_steps": 7, "eval_dataset": held_out}
    guarded = trainer(tmp_path / "out", scenario.model(), rows, **options)
    ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    with pytest.raises(Stopped, match="after step 7"):
        guarded.train()


def test_lightning_has_its_turn_after_the_snapshot(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    from lightning.pytorch.trainer.connectors.signal_connector import (  # noqa: PLC0415
        _SignalConnector,
    )

    from tests.integrations.test_lightning import (  # noqa: PLC0415
        Module,
        guard_callback,
        loader,
        trainer,
    )

    called = []

    def own(self, number, frame):
        called.append(end_of(tmp_path / "run")["kind"])
        self.received_sigterm = True

    monkeypatch.setattr(_SignalConnector, "_sigterm_notifier_fn", own)

    def fit(path, at=0):
        module, callback = Module(dropout=0.1), guard_callback(path)
        rows = loader(Asking(at))
        return module, callback, lambda: trainer(path, callback, max_steps=STEPS).fit(module, rows)

    whole, _, run = fit(tmp_path / "whole")
    run()
    _, callback, run = fit(tmp_path, at=8 * 12 + 3)
    with pytest.raises(Stopped, match="by SIGTERM after step 13"):
        run()
    assert called == ["run_stopped"] and callback.guard.stopped
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    again, callback, run = fit(tmp_path)
    run()
    assert callback.guard.stopped is None
    assert same(again, whole)


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    from tests.integrations.test_accelerate import guarded, prepared  # noqa: PLC0415

    def loop(name, step=0):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        parts = prepared(accelerator)
        guard = guarded(accelerator, parts, tmp_path / name, max_steps=STEPS)

        class Model(torch.nn.Module):
            asked = False

            def forward(self, **batch):
                if guard.step_number + 1 == step and not Model.asked:
                    Model.asked = True
                    os.kill(os.getpid(), signal.SIGTERM)
                return parts[0](**batch)

        return parts[0], lambda: scenario.train(guard, Model())

    whole, run = loop("whole")
    run()
    _, run = loop("run", 14)
    with pytest.raises(Stopped, match="after step 14"):
        run()
    again, run = loop("run")
    run()
    assert same(again, whole)
