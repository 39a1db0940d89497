"""Trainings in each framework: under the Guard, and as the framework's users write it.

The recovery scenario's rows, model, schedule and clipping, in the loops that the tests of the
integrations train. One file each, which imports its framework.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from torch import nn

from tests.integrations import scenario

Untouched = Callable[[list[list[int]]], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A framework's training.

    Attributes:
        guarded: `(run_dir, steps) ->` the model at the end of a run under the Guard.
        untouched: `(folder) ->` what trains a model on given batches of rows in the framework's
            own loop.
        interrupted: `(run_dir, kill_at) ->` the digest of the whole state at the end of a run
            with dropout; the process dies as by kill -9 after step `kill_at`, if it is given.
        survivors: `(run_dir) ->` the rows of each update that counts, in order.
        steps: of a run through the whole scenario.
        num_updates: that such a run has at its end; None where it depends on what is set aside.
    """

    guarded: Callable[[Path, int], nn.Module]
    untouched: Callable[[Path], Untouched]
    interrupted: Callable[[Path, int | None], str]
    survivors: Callable[[Path], list[list[int]]] = scenario.survivors
    steps: int = scenario.STEPS
    num_updates: int | None = scenario.STEPS - 1


PACKAGES = {
    "plain": "torch",
    "hf": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "fabric": "lightning",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "megatron": "megatron-core",
}
"""The distribution whose loop it is."""

STAND_INS = {
    "torchtitan": "a stand-in written from torchtitan's source of August 2026",
    "megatron": "a stand-in written from Megatron-LM's source of August 2026",
}
"""What is measured in the place of the package itself."""


def loop_of(name: str) -> Loop:
    """The loop of an integration.

    Raises:
        ImportError: there is none of this name, or its package is not installed.
    """
    loop: Loop = import_module(f"benchmarks.integrations.loops.{name}").LOOP
    return loop
