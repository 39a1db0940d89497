"""The usual monitor by hand, with activations, logits and attention scores computed in full."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.monitor import MONITOR, Monitor
from benchmarks.overhead.monitors.naive import Naive
from benchmarks.overhead.training import Training
from foreshock.lab import gpt


class NaiveEverything(Monitor):
    """`Naive`, RMS and largest magnitude of each block, largest logit, full QK^T maximum."""

    name = "naive_everything"
    notes = "as naive; QK^T of every layer is computed again in full, masked, and its maximum taken"

    def attach(self, training: Training, folder: Path) -> None:
        self._naive = Naive()
        self._naive.attach(training, folder)
        self._seen: dict[str, float] = {}
        self._attend = gpt.scaled_dot_product_attention
        for number, block in enumerate(training.model.blocks):
            block.register_forward_hook(self._see(f"blocks.{number}"))
        training.model.head.register_forward_hook(self._see("head"))

    def before_forward(self) -> None:
        self._seen = {}
        gpt.scaled_dot_product_attention = self._attend_and_look

    def after_forward(self, loss: torch.Tensor) -> None:
        gpt.scaled_dot_product_attention = self._attend

    def after_backward(self, loss: torch.Tensor) -> None:
        self._naive.after_backward(loss)

    def before_update(self) -> None:
        self._naive.before_update()

    def after_update(self) -> None:
        self._naive.after_update()

    def _see(self, name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            value = output.detach()
            self._seen[f"rms/{name}"] = value.square().mean().sqrt().item()
            self._seen[f"absmax/{name}"] = value.abs().max().item()

        return hook

    def _attend_and_look(self, q: torch.Tensor, k: torch.Tensor, *args: Any, **named: Any) -> Any:
        with self.clock.part(MONITOR), torch.no_grad():
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            largest = scores.masked_fill(future, -torch.inf).max().item()
            self._seen[f"max_attention_logit/{len(self._seen)}"] = largest
        return self._attend(q, k, *args, **named)
