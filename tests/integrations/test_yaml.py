"""A Trainer that a YAML file configures, as axolotl's: a plugin attaches the callback.

The stand-in reads the file, builds the Trainer, loads the plugins by their dotted names, calls
`post_trainer_create` on each, and trains, as axolotl's `load_plugin`, `PluginManager` and `train`
do in 2026.
"""

import importlib
import sys
from types import ModuleType

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
yaml = pytest.importorskip("yaml")

from foreshock.core.errors import CapabilityError, ConfigError  # noqa: E402
from foreshock.integrations.hf import ForeshockCallback  # noqa: E402
from tests.integrations import scenario  # noqa: E402
from tests.integrations.scenario import blocks  # noqa: E402

SECTION = "axolotl, and other YAML files"
CONFIG = """
output_dir: out
micro_batch_size: 4
gradient_accumulation_steps: 2
max_steps: 12
learning_rate: 0.01
"""


class BasePlugin:
    def post_trainer_create(self, cfg, trainer): ...


class DictDefault(dict):
    """As axolotl's: what is not there is None."""

    def __getattr__(self, name):
        return self.get(name)


class PackingArguments(transformers.TrainingArguments):
    sample_packing = False


def built(text):
    """The Trainer of a YAML file, its plugins called."""
    cfg = DictDefault(yaml.safe_load(text))
    arguments = PackingArguments(
        output_dir=cfg.output_dir,
        per_device_train_batch_size=cfg.micro_batch_size,
        gradient_accumulation_steps=cfg.gradient_accumulation_steps,
        max_steps=cfg.max_steps,
        learning_rate=cfg.learning_rate,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    arguments.sample_packing = cfg.sample_packing
    trainer = transformers.Trainer(scenario.model(), arguments, train_dataset=scenario.Rows())
    for name in cfg.plugins:
        module, kind = name.rsplit(".", 1)
        getattr(importlib.import_module(module), kind)().post_trainer_create(cfg, trainer)
    return trainer


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The YAML file of the documentation, its plugin where Python finds it."""
    code, addition = blocks(SECTION)
    (tmp_path / "foreshock_plugin.py").write_text(code)
    base = ModuleType("axolotl.integrations.base")
    base.BasePlugin = BasePlugin
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "foreshock_plugin", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return CONFIG + addition


def test_the_plugin_guards_the_trainer(tmp_path, page):
    trainer = built(page)
    trainer.train()
    assert trainer.state.global_step == 12
    (callback,) = (
        one for one in trainer.callback_handler.callbacks if isinstance(one, ForeshockCallback)
    )
    assert callback.guard.step_number == 12
    assert (tmp_path / "out/foreshock/decisions.jsonl").exists()


def test_what_a_sampler_packs_is_not_lost_in_silence(page):
    with pytest.raises(CapabilityError, match=r"sample packing by the sampler: .*rewind=False"):
        built(page.replace("sample_packing: false", "sample_packing: true"))


def test_a_callback_among_the_callbacks_alone_says_what_to_do(tmp_path):
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(
        scenario.model(),
        arguments,
        train_dataset=scenario.Rows(),
        callbacks=[ForeshockCallback(tmp_path / "run")],
    )
    with pytest.raises(ConfigError, match=r"callback.attach\(trainer\)"):
        trainer.train()
