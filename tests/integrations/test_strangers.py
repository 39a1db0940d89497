"""What stood in the way when scripts that others wrote were guarded; see `docs/strangers.md`."""

import math
import random

import numpy as np
import pytest
import torch

import foreshock
from foreshock.core.errors import CapabilityError, RunDirError
from foreshock.durable import RealDisk
from foreshock.recipes import standard
from foreshock.run_view import view_run
from tests.data.lineage import lineage
from tests.integrations import scenario


def rate(step):
    """A schedule in the script's own hands."""
    return scenario.LR * (0.75 + 0.25 * math.cos(step / scenario.STEPS))


def set_rate(optimizer, step):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)


def test_a_rate_set_by_hand_after_the_batch_was_taken_goes_back_with_the_run(tmp_path):
    model = scenario.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    guard = foreshock.Guard(
        model,
        optimizer,
        scenario.stream(),
        run_dir=tmp_path,
        clip=scenario.CLIP,
        max_steps=scenario.STEPS,
        recipe=scenario.recipe(),
    )
    with guard:
        for batch in guard:
            set_rate(optimizer, guard.step_number)
            guard.step(model(**batch)["loss"])
    assert guard.book.num_rollbacks > 0

    def untouched(batches):
        numbers = {tuple(places): step for step, places in lineage(view).items()}
        steps = [numbers[tuple(place_of[row] for row in batch)] - 1 for batch in batches]
        twin, rows = scenario.model(), scenario.Rows()
        own = torch.optim.AdamW(twin.parameters(), lr=1.0)
        for step, batch in zip(steps, batches, strict=True):
            set_rate(own, step)
            some = torch.utils.data.default_collate([rows[row] for row in batch])
            own.zero_grad()
            twin(**some)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), scenario.CLIP)
            own.step()
        return twin

    view = view_run(RealDisk(), tmp_path)
    place_of = {row: place for place, row in enumerate(scenario.order())}
    scenario.check(tmp_path, model, untouched)


class RandomWindows:
    """A loader whose whole state is torch's random generator, as nanoGPT's `get_batch`."""

    def __iter__(self):
        return self

    def __next__(self):
        rows = scenario.Rows()
        places = torch.randint(len(rows), (scenario.BATCH,)).tolist()
        return torch.utils.data.default_collate([rows[place] for place in places])

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def at_random(run_dir, *max_steps):
    """Train up to each of these steps in turn, every time in a new loop."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(scenario.SEED)
    digest = ""
    for last in max_steps:
        model = scenario.model(dropout=0.1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=scenario.LR)
        guard = foreshock.Guard(
            model,
            optimizer,
            RandomWindows(),
            run_dir=run_dir,
            max_steps=last,
            resume=None,
            recipe=scenario.recipe(),
        )
        with guard:
            for batch in guard:
                guard.step(model(**batch)["loss"])
            digest = guard.digest()
        torch.manual_seed(99)  # a new process stands elsewhere
    return digest


def test_windows_drawn_at_random_go_on_where_they_were(tmp_path):
    assert at_random(tmp_path / "parts", 25, 50) == at_random(tmp_path / "whole", 50)


def test_a_loader_that_cannot_go_back_is_begun_in_a_new_directory(tmp_path):
    def loop():
        model = scenario.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=scenario.LR)
        return foreshock.Guard(
            model,
            optimizer,
            (batch for batch in ()),
            run_dir=tmp_path,
            resume=None,
            recipe=standard({"policy": {"can_rollback": False}}),
        )

    with loop() as guard:
        assert list(guard) == []
    with pytest.raises(CapabilityError, match="begin in a new run_dir: a generator has no state"):
        loop()


def test_what_has_changed_since_is_named(tmp_path):
    def loop(width, seed=0):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, width))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        stream = foreshock.Stream(list(range(64)), batch_size=4, seed=seed)
        return foreshock.Guard(model, optimizer, stream, run_dir=tmp_path, resume=None)

    loop(2).close()
    named = r"\(fingerprint.parameters.1.weight was \[2, 4\], now \[3, 4\]\)"
    with pytest.raises(RunDirError, match=named):
        loop(3)
    with pytest.raises(RunDirError, match=r"another stream \(stream.seed was 0, now 1\)"):
        loop(2, seed=1)


def test_the_loop_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 1)
    evaluated: list[int] = []
    text = torch.arange(4000.0).remainder(7).reshape(-1, 4)
    names = {
        "windows": torch.utils.data.TensorDataset(text, text.sum(1, keepdim=True)),
        "held_out": [(text[:4], text[:4].sum(1, keepdim=True))],
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1.0),
        "rate": lambda step: 1e-2,
        "loss_fn": lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        "evaluate": lambda: evaluated.append(names["guard"].step_number),
        "device": "cpu",
    }
    code = scenario.example("Your own loop").replace("600_000", "60").replace("2_000", "20")
    exec(code, names)
    assert names["guard"].step_number == 60
    assert evaluated == [0, 20, 40]


class Words:
    """A tokenizer, as far as texts are told by it."""

    def decode(self, tokens):
        return " ".join(f"w{token}" for token in tokens)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"input_ids": [1, 2]}, "w1 w2"),
        ({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}, "w1w2"),
        ({"pixel_values": [0.5], "label": 1}, None),
        ({"text": "as it is", "label": 1}, "as it is"),
        ([0.5], None),
    ],
)
def test_rows_of_any_trainer_have_a_text_or_none(tmp_path, row, text):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    hf = pytest.importorskip("foreshock.integrations.hf")
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = transformers.Trainer(
        scenario.model(), arguments, train_dataset=[row] * 8, data_collator=list
    )
    trainer.processing_class = Words()
    assert hf._stream(trainer, None).text(0) == text
