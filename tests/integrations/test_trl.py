"""TRL's Trainers under the Guard, with the real package and a tiny GPT-2."""

import dataclasses
import random

import pytest
import torch

trl = pytest.importorskip("trl")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")

from foreshock.core.policy import Policy  # noqa: E402
from foreshock.data.stream import Stage, Stream  # noqa: E402
from foreshock.integrations.hf import ForeshockCallback  # noqa: E402
from tests.integrations import scenario  # noqa: E402

pytestmark = pytest.mark.slow

LETTERS = "abcdefgh"
STEPS = 12


def tokenizer():
    vocabulary = {word: number for number, word in enumerate(["</s>", "<unk>", *LETTERS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )


def model(folder):
    torch.manual_seed(0)
    shape = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    made = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=2 + len(LETTERS), bos_token_id=0, eos_token_id=0, **shape
        )
    )
    made.save_pretrained(folder / "model")  # TRL reads the reference from where it came
    return transformers.GPT2LMHeadModel.from_pretrained(folder / "model")


def sentences(number):
    rng = random.Random(0)
    return [" ".join(rng.choices(LETTERS, k=6)) for _ in range(number)]


def settings(kind, folder, **options):
    return kind(
        str(folder / "out"),
        per_device_train_batch_size=4,
        max_steps=STEPS,
        max_grad_norm=100.0,  # never reached: the last bits of a clipped step differ
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        **options,
    )


def test_sft_ends_as_untouched(tmp_path):
    rows = datasets.Dataset.from_list([{"text": one} for one in sentences(80)])
    arguments = settings(trl.SFTConfig, tmp_path)

    def trainer(rows):
        return trl.SFTTrainer(
            model(tmp_path), args=arguments, train_dataset=rows, processing_class=tokenizer()
        )

    guarded = trainer(rows)
    callback = ForeshockCallback(tmp_path / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()
    assert guarded.state.global_step == callback.guard.step_number == STEPS
    stages = [Stage(name="train", sources={"train": rows}, repeats=None)]
    order = Stream(stages, batch_size=4, seed=arguments.seed).order
    plain = trainer(rows.select([order.locate(place).index for place in range(4 * STEPS)]))
    plain._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(plain.train_dataset)
    plain.train()
    ours, theirs = (scenario.weights(one.model) for one in (guarded, plain))
    assert all(map(torch.equal, ours, theirs))


def test_dpo_is_trained_and_judged_by_what_was_chosen(tmp_path):
    pairs = [{"prompt": one, "chosen": " a b", "rejected": " g h"} for one in sentences(80)]
    trainer = trl.DPOTrainer(
        model(tmp_path),
        args=settings(trl.DPOConfig, tmp_path),
        train_dataset=datasets.Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )
    callback = ForeshockCallback(tmp_path / "run").attach(trainer)
    trainer.train()
    assert trainer.state.global_step == callback.guard.step_number == STEPS


def test_grpo_is_watched_and_skips(tmp_path):
    """It makes its own batches, which cannot go back."""
    recipe = dataclasses.replace(scenario.recipe(), policy=Policy(can_rollback=False))
    trainer = trl.GRPOTrainer(
        model(tmp_path),
        reward_funcs=lambda completions, **_: [float(len(set(one))) for one in completions],
        args=settings(
            trl.GRPOConfig, tmp_path, num_generations=4, max_completion_length=6, num_iterations=1
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": one} for one in sentences(80)]),
        processing_class=tokenizer(),
    )
    callback = ForeshockCallback(tmp_path / "run", rewind=False, recipe=recipe).attach(trainer)
    trainer.model.transformer.wte.weight.register_hook(  # TRL replaces a NaN of its rewards itself
        lambda grad: grad * torch.nan if trainer.state.global_step == 5 else grad
    )
    trainer.train()
    assert trainer.state.global_step == callback.guard.step_number == STEPS
    assert [one["step"] for one in callback.guard.records if one["kind"] == "skip"] == [6]
    assert all(torch.isfinite(one).all() for one in scenario.weights(trainer.model))
