"""Composer's OptimizerMonitor and ActivationMonitor, from the files that mosaicml installs.

Composer as a whole imports torchvision, which its two monitors do not need. So the modules
that they use are loaded one by one: its packages' `__init__` files are not run, and each name
that a package would give is taken from the module that defines it.
"""

import importlib
import importlib.util
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.monitor import Monitor, NotRunnableError
from benchmarks.overhead.training import Training

_PACKAGES = ("core", "utils", "loggers", "callbacks", "optim")
_NAMES = (
    ("utils", "string_enum", ("StringEnum",)),
    ("utils", "iter_helpers", ("ensure_tuple",)),
    ("utils", "import_helpers", ("MissingConditionalImportError",)),
    ("utils", "dist", ()),
    ("core", "callback", ("Callback",)),
    ("core", "time", ("Time", "TimeUnit", "Timestamp")),
    ("loggers", "logger", ("Logger",)),
)


class Composer(Monitor):
    """Both monitors at interval 1, called at the events at which composer's trainer calls them."""

    name = "composer"
    package = "mosaicml"
    notes = (
        "OptimizerMonitor(batch_log_interval=1) with DecoupledAdamW's per-parameter metrics on "
        "torch's fused AdamW, and ActivationMonitor('1ba'); composer's Logger without "
        "destinations; neither its trainer nor its __init__ files are loaded (they import "
        "torchvision): a plain object with four attributes stands for State, and "
        "composer.utils.format_name_with_dist, which neither calls, is a function that raises"
    )

    def optimizer_class(self) -> type[torch.optim.AdamW]:
        _load()
        reporting = importlib.import_module("composer.optim.decoupled_weight_decay").DecoupledAdamW

        class ReportingAdamW(torch.optim.AdamW):
            metric_functions = reporting.metric_functions
            report_per_parameter_metrics = reporting.report_per_parameter_metrics

            def __init__(self, *args: Any, **named: Any) -> None:
                super().__init__(*args, **named)
                for group in self.param_groups:
                    group["initial_lr"] = group["lr"]

        return ReportingAdamW

    def attach(self, training: Training, folder: Path) -> None:
        callbacks = "composer.callbacks."
        optimizer_monitor = importlib.import_module(callbacks + "optimizer_monitor")
        activation_monitor = importlib.import_module(callbacks + "activation_monitor")
        self._timestamp = importlib.import_module("composer.core.time").Timestamp()
        self._state = types.SimpleNamespace(
            model=training.model,
            optimizers=[training.optimizer],
            fsdp_enabled=False,
            timestamp=self._timestamp,
        )
        logger: Any = importlib.import_module("composer.loggers.logger").Logger
        self._logger = logger(self._state)
        self._optimizer = optimizer_monitor.OptimizerMonitor(batch_log_interval=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it advises against intervals below ten batches
            self._activation = activation_monitor.ActivationMonitor("1ba")

    def before_forward(self) -> None:
        with self.clock.part("ActivationMonitor"):
            self._activation.before_forward(self._state, self._logger)

    def after_forward(self, loss: torch.Tensor) -> None:
        with self.clock.part("ActivationMonitor"):
            self._activation.after_forward(self._state, self._logger)

    def after_update(self) -> None:
        with self.clock.part("training.trainer"):
            self._state.timestamp = self._state.timestamp.to_next_batch()
        with self.clock.part("OptimizerMonitor"):
            self._optimizer.batch_end(self._state, self._logger)


def _load() -> None:
    """Make the modules of composer that its monitors need importable without the rest.

    Raises:
        NotRunnableError: mosaicml is not installed, or lays its files out in another way.
    """
    if "composer" in sys.modules:
        return
    found = importlib.util.find_spec("composer")
    if found is None or not found.submodule_search_locations:
        raise NotRunnableError("not installed here: mosaicml")
    root = Path(found.submodule_search_locations[0])
    try:
        _package("composer", root)
        packages = {name: _package(f"composer.{name}", root / name) for name in _PACKAGES}
        utils: Any = packages["utils"]
        utils.format_name_with_dist = _never_called
        core: Any = packages["core"]
        core.State = types.SimpleNamespace
        for package, module, names in _NAMES:
            loaded = importlib.import_module(f"composer.{package}.{module}")
            for name in names:
                setattr(packages[package], name, getattr(loaded, name))
    except (ImportError, AttributeError) as error:
        for name in [name for name in sys.modules if name.split(".")[0] == "composer"]:
            del sys.modules[name]
        raise NotRunnableError(f"its modules cannot be loaded alone: {error}") from error


def _package(name: str, folder: Path) -> types.ModuleType:
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    return package


def _never_called(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("composer.utils.format_name_with_dist is not loaded")
