"""The Trainer under the Guard, with the real package."""


import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from foreshock.integrations.hf import ForeshockCallback  # noqa: E402
from tests.integrations import scenario  # noqa: E402


def trainer(out, model, rows, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=scenario.BATCH,
        max_steps=options.pop("max_steps", scenario.STEPS),
        learning_rate=scenario.LR,
        lr_scheduler_type="constant",
        max_grad_norm=scenario.CLIP,
        seed=scenario.SEED,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=10,
        **options,
    )
    return transformers.Trainer(model, arguments, train_dataset=rows)


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
