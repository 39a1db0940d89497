"""Cockpit's gradient norm and update size (Schneider, Dangel and Hennig, 2021)."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.monitor import Monitor, installed
from benchmarks.overhead.training import Training


class Cockpit(Monitor):
    """`Cockpit` with `GradNorm` and `UpdateSize` at every step."""

    name = "cockpit"
    package = "cockpit-for-pytorch"
    notes = "GradNorm and UpdateSize, every step; neither needs BackPACK's extensions"

    def attach(self, training: Training, folder: Path) -> None:
        cockpit = installed("cockpit")
        quantities = installed("cockpit.quantities")

        def always(step: int) -> bool:
            return step >= 0

        self._cockpit = cockpit.Cockpit(
            training.model.parameters(),
            quantities=[quantities.GradNorm(always), quantities.UpdateSize(always)],
        )
        self._step = 0
        self._context: Any = None

    def after_forward(self, loss: torch.Tensor) -> None:
        self._context = self._cockpit(self._step, info={"loss": loss})
        self._context.__enter__()

    def after_backward(self, loss: torch.Tensor) -> None:
        self._context.__exit__(None, None, None)
        self._step += 1

    def facts(self) -> dict[str, Any]:
        return {"num_steps_recorded": len(self._cockpit.get_output())}
