"""The usual monitor by hand: a number for each parameter and quantity, each fetched alone."""

from pathlib import Path

import torch

from benchmarks.overhead.monitor import Monitor
from benchmarks.overhead.training import Training


class Naive(Monitor):
    """Gradient norm, largest magnitude, NaN and Inf counts, parameter, update and v norm."""

    name = "naive"
    notes = "one .item() for each parameter and quantity; the update from a clone"

    def attach(self, training: Training, folder: Path) -> None:
        self._named = list(training.model.named_parameters())
        self._optimizer = training.optimizer
        self._before: list[torch.Tensor] = []
        self.values: dict[str, float] = {}

    @torch.no_grad()
    def after_backward(self, loss: torch.Tensor) -> None:
        self.values = {"loss": loss.item()}
        for name, parameter in self._named:
            grad = parameter.grad
            assert grad is not None
            self.values[f"grad_norm/{name}"] = grad.norm().item()
            self.values[f"grad_absmax/{name}"] = grad.abs().max().item()
            self.values[f"num_nan/{name}"] = grad.isnan().sum().item()
            self.values[f"num_inf/{name}"] = grad.isinf().sum().item()

    @torch.no_grad()
    def before_update(self) -> None:
        self._before = [parameter.detach().clone() for _, parameter in self._named]

    @torch.no_grad()
    def after_update(self) -> None:
        for (name, parameter), before in zip(self._named, self._before, strict=True):
            self.values[f"param_norm/{name}"] = parameter.norm().item()
            self.values[f"update_norm/{name}"] = (parameter - before).norm().item()
            v = self._optimizer.state[parameter]["exp_avg_sq"]
            self.values[f"v_norm/{name}"] = v.norm().item()
        self._before = []
