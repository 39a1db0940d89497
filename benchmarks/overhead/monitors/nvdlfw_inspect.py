"""NVIDIA's nvdlfw-inspect, feature LogTensorStats."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.monitor import Monitor, installed
from benchmarks.overhead.training import Training

_CONFIG = """
everything:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    tensors: [output, gradient, parameter]
    stats: [min, max, mean, std, l1_norm, l2_norm]
    freq: 1
"""


class NvdlfwInspect(Monitor):
    """All six statistics of gradients, parameters and block outputs, to its own log file."""

    name = "nvdlfw_inspect"
    package = "nvdlfw_inspect"
    notes = (
        "LogTensorStats (min, max, mean, std, l1_norm, l2_norm) of every gradient, parameter and "
        "block output; skip_reduction; its default file logger"
    )

    def attach(self, training: Training, folder: Path) -> None:
        debug = installed("nvdlfw_inspect.api")
        config = folder / "inspect.yaml"
        config.write_text(_CONFIG, encoding="utf-8")
        debug.initialize(config_file=str(config), log_dir=str(folder))
        self._debug, self._folder = debug, folder
        self._named = list(training.model.named_parameters())
        for number, block in enumerate(training.model.blocks):
            block.register_forward_hook(self._see(f"blocks.{number}"))

    def after_backward(self, loss: torch.Tensor) -> None:
        for name, parameter in self._named:
            assert parameter.grad is not None
            self._log(name, "gradient", parameter.grad)
            self._log(name, "parameter", parameter.detach())

    def after_update(self) -> None:
        self._debug.step()

    def close(self) -> None:
        self._debug.end_debug()

    def facts(self) -> dict[str, Any]:
        logs = self._folder.glob("nvdlfw_inspect_statistics_logs/*")
        return {"num_values_recorded": sum(log.read_bytes().count(b"\n") for log in logs)}

    def _see(self, name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self._log(name, "output", output.detach())

        return hook

    def _log(self, layer: str, kind: str, tensor: torch.Tensor) -> None:
        self._debug.log_tensor_stats(
            layer_name=layer, tensor_name=kind, tensor=tensor, skip_reduction=True
        )
