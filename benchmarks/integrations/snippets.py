"""Loops as users of each framework write them, and what the documentation adds to them."""

import difflib
import re
from pathlib import Path

from tests.integrations.scenario import example

_BEFORE = {
    "plain": """\
loader = DataLoader(dataset, batch_size=64, shuffle=True)
for batch in loader:
    loss = loss_fn(model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
""",
    "hf": """\
trainer = transformers.Trainer(model, args, train_dataset=rows)
trainer.train()
""",
    "lightning": """\
trainer = lightning.Trainer(max_epochs=2)
trainer.fit(module, loader)
""",
    "fabric": """\
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader)
for batch in loader:
    loss = loss_fn(model, batch)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
""",
    "accelerate": """\
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = loss_fn(model, batch)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
""",
    "deepspeed": """\
import deepspeed
import torch
engine, _, loader, _ = deepspeed.initialize(
    model=model, optimizer=optimizer, training_data=dataset, config=config
)
for batch in loader:
    loss = loss_fn(engine, batch)
    engine.backward(loss)
    engine.step()
""",
    "torchtitan": """\
trainer = config.build()
trainer.train()
""",
    "megatron": "",
}
_SECTIONS = {
    "hf": "Hugging Face Trainer",
    "lightning": "Lightning",
    "fabric": "Fabric",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "torchtitan": "torchtitan",
    "megatron": "Megatron-LM",
}


def lines_changed(name: str) -> dict[str, int] | None:
    """Lines of code that the documentation's example adds to the loop, and that it takes away.

    None where the documentation has no example of its own.
    """
    if name not in _BEFORE:
        return None
    guarded = _readme() if name == "plain" else example(_SECTIONS[name])
    before, after = _code(_BEFORE[name]), _code(guarded)
    marks = [line[0] for line in difflib.ndiff(before, after)]
    return {"added": marks.count("+"), "removed": marks.count("-")}


def _readme() -> str:
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```python\n(import foreshock\n.*?)```", page, re.DOTALL)
    return found


def _code(text: str) -> list[str]:
    """Lines that say something, without indentation."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line.strip("()[]{},") and not line.startswith("#")]
