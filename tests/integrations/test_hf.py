"""The Trainer under the Guard, with the real package."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from foreshock.core.errors import CapabilityError  # noqa: E402
from foreshock.core.policy import Policy  # noqa: E402
from foreshock.data.stream import Stage, Stream  # noqa: E402
from foreshock.integrations import hf  # noqa: E402
from foreshock.integrations.hf import ForeshockCallback  # noqa: E402
from tests.integrations import scenario  # noqa: E402
from tests.ranks.processes import on_ranks  # noqa: E402


def trainer(out, model, rows, **options):
    held_out = options.pop("eval_dataset", None)
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=options.pop("per_device_train_batch_size", scenario.BATCH),
        max_steps=options.pop("max_steps", scenario.STEPS),
        learning_rate=scenario.LR,
        lr_scheduler_type="constant",
        max_grad_norm=scenario.CLIP,
        seed=scenario.SEED,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=options.pop("logging_steps", 10),
        **options,
    )
    return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=held_out)


def untouched(tmp_path):
    def train(batches):
        rows = scenario.Rows()
        flat = [rows[row] for batch in batches for row in batch]
        model = scenario.model()
        plain = trainer(tmp_path / "twin", model, flat, max_steps=len(batches))
        plain._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(flat)
        plain.train()
        return model

    return train


def test_skips_rolls_back_and_ends_as_an_untouched_trainer(tmp_path):
    model = scenario.model()
    guarded = trainer(tmp_path / "out", model, scenario.Rows())
    callback = ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()
    assert guarded.state.global_step == scenario.STEPS
    assert callback.guard.book.num_rollbacks > 0
    scenario.check(tmp_path / "run", model, untouched(tmp_path))


PROGRAM = """
import os, signal, sys
import torch
from foreshock.integrations.hf import ForeshockCallback
from tests.integrations import scenario
from tests.integrations.test_hf import trainer

out, kill_at = sys.argv[1], int(sys.argv[2])

class Killer(torch.utils.data.Dataset):
    rows = scenario.Rows()
    asked = 0
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        Killer.asked += 1
        if Killer.asked == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.rows[index]

model = scenario.model(dropout=0.1)
guarded = trainer(out, model, Killer(), gradient_accumulation_steps=2, max_steps=60)
ForeshockCallback(out + "/run", recipe=scenario.recipe()).attach(guarded)
guarded.train()
torch.save(model.state_dict(), out + "/end.pt")
"""


def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ends = []
    for name, kills in (("whole", [0]), ("killed", [500, 300, 0])):
        out = tmp_path / name
        out.mkdir()
        for kill_at in kills:
            done = subprocess.run(
                [sys.executable, str(tmp_path / "program.py"), str(out), str(kill_at)],
                cwd=Path.cwd(),
                env={**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            expected = -signal.SIGKILL if kill_at else 0
            assert done.returncode == expected, done.stderr[-2000:]
        ends.append(torch.load(out / "end.pt", weights_only=True))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def in_order(rows):
    """Rows as Foreshock gives them out."""
    stages = [Stage(name="train", sources={"train": rows}, repeats=None)]
    order = Stream(stages, batch_size=scenario.BATCH, seed=scenario.SEED).order
    return [rows[order.locate(place).index] for place in range(len(rows))]


def norms(trained):
    trained.train()
    return [one["grad_norm"] for one in trained.state.log_history if "grad_norm" in one]


def test_the_norm_in_the_logs_is_the_one_before_clipping(tmp_path):
    rows = [scenario.Rows()[index] for index in range(400)]
    options = {"max_steps": 20, "logging_steps": 1, "gradient_accumulation_steps": 2}
    placed = in_order(rows)
    plain = trainer(tmp_path / "plain", scenario.model(), placed, **options)
    plain._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(placed)
    guarded = trainer(tmp_path / "out", scenario.model(), rows, **options)
    plain.args.max_grad_norm = guarded.args.max_grad_norm = 0.3
    ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    expected = norms(plain)
    assert len(expected) == 20 and max(expected) > 0.3
    assert norms(guarded) == pytest.approx(expected, rel=1e-5)


def test_where_an_epoch_ends_the_trainer_evaluates(tmp_path):
    rows = [scenario.Rows()[index] for index in range(80)]
    options = {"max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch"}
    options["eval_dataset"] = rows[:16]
    guarded = trainer(tmp_path / "out", scenario.model(), rows, **options)
    ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()
    evals = [one["epoch"] for one in guarded.state.log_history if "eval_loss" in one]
    assert evals == [1.0, 2.0, 3.0]
    assert guarded.state.global_step == 30


def test_what_cannot_be_guarded_is_refused_before_the_first_step(tmp_path):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from scenario.Rows()

    class OwnLoader(transformers.Trainer):
        def get_train_dataloader(self):
            return super().get_train_dataloader()

    stream = trainer(tmp_path / "a", scenario.model(), Endless())
    with pytest.raises(CapabilityError, match="cannot go back"):
        ForeshockCallback(tmp_path / "run").attach(stream)
    own = OwnLoader(scenario.model(), stream.args, train_dataset=scenario.Rows())
    with pytest.raises(CapabilityError, match="OwnLoader makes its own loader"):
        ForeshockCallback(tmp_path / "run").attach(own)
    with pytest.raises(CapabilityError, match="can_rollback=False"):
        ForeshockCallback(tmp_path / "run", rewind=False).attach(own)
        own.train()


def test_a_trainer_with_its_own_loader_is_watched_and_its_steps_are_skipped(tmp_path):
    class OwnLoader(transformers.Trainer):
        def get_train_dataloader(self):
            return super().get_train_dataloader()

    recipe = dataclasses.replace(scenario.recipe(), policy=Policy(can_rollback=False))
    args = trainer(tmp_path / "a", scenario.model(), scenario.Rows(), max_steps=30).args
    rows = [scenario.Rows()[index] for index in (*range(100), scenario.Rows().nan)]
    model = scenario.model()
    own = OwnLoader(model, args, train_dataset=rows)
    callback = ForeshockCallback(tmp_path / "run", rewind=False, recipe=recipe).attach(own)
    own.train()
    assert callback.guard.step_number == 30
    assert [r["step"] for r in callback.guard.records if r["kind"] == "skip"]
    assert all(torch.isfinite(one).all() for one in scenario.weights(model))


def test_afterwards_everything_is_as_it_was(tmp_path):
    guarded = trainer(tmp_path / "out", scenario.model(), scenario.Rows(), max_steps=8)
    before = set(vars(guarded.accelerator))
    ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()
    assert set(vars(guarded.accelerator)) == before
    assert guarded.optimizer.step.__module__ != "foreshock.integrations.hf"
    assert not any(module._forward_hooks for module in guarded.model.modules())


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = trainer(tmp_path / "out", scenario.model(), scenario.Rows(), max_steps=12).args
    names = {"transformers": transformers, "args": args, "rows": scenario.Rows()}
    names["model"] = scenario.model()
    exec(scenario.example("Hugging Face Trainer"), names)
    assert names["trainer"].state.global_step == 12
    assert (tmp_path / "runs/a/decisions.jsonl").exists()


def test_one_call_does_both_and_gives_back_what_train_does(tmp_path):
    guarded = trainer(tmp_path / "out", scenario.model(), scenario.Rows(), max_steps=12)
    told = hf.train(guarded, tmp_path / "run", recipe=scenario.recipe())
    assert told.global_step == 12
    assert (tmp_path / "run/decisions.jsonl").exists()


def test_deepspeed_is_refused_before_the_first_step_with_the_reason(tmp_path):
    """As the Trainer's configuration would have it; nothing of DeepSpeed is needed to say so."""
    under = trainer(tmp_path / "out", scenario.model(), scenario.Rows())
    under.is_deepspeed_enabled = True
    with pytest.raises(CapabilityError, match="DeepSpeed: it makes the update inside backward"):
        ForeshockCallback(tmp_path / "run").attach(under)
    assert not (tmp_path / "run").exists()


def on_a_rank(rank, world, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    model = scenario.model()
    size = scenario.BATCH // world
    guarded = trainer(folder / "out", model, scenario.Rows(), per_device_train_batch_size=size)
    assert guarded.args.world_size == world
    callback = ForeshockCallback(folder / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()
    assert isinstance(guarded.model_wrapped, torch.nn.parallel.DistributedDataParallel)

    def twin(batches):
        rows = scenario.Rows()
        flat = [rows[row] for batch in batches for row in batch[rank * size : (rank + 1) * size]]
        other = scenario.model()
        options = {"max_steps": len(batches), "per_device_train_batch_size": size}
        plain = trainer(folder / "twin", other, flat, **options)
        plain.get_train_dataloader = lambda: torch.utils.data.DataLoader(
            flat, size, collate_fn=plain.data_collator
        )
        plain.train()
        return other

    scenario.check(folder / "run", model, twin)
    return callback.guard.book.num_rollbacks


@pytest.mark.slow
def test_two_processes(tmp_path):
    found = on_ranks(on_a_rank, 2, tmp_path)
    assert found[0] == found[1] > 0
