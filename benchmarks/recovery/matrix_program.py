"""The program of the fault matrix: a small GPT on real text, in which single samples may differ.

Its data are the same two sources, of the same sizes, in every run of the matrix: anchors, trials,
twins and healthy runs share one order, and one run directory can be taken up by all of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from foreshock import recipes
from foreshock.core.program import Program, Settings
from foreshock.data.stream import Stage, Stream
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.programs import next_byte_loss, to_text
from foreshock.lab.text import Kind, TextWindows, load_text

CONTEXT = 64
BATCH_SIZE = 16
NAME = "fault_matrix"

_KINDS: Mapping[Kind, tuple[int, float]] = {"code": (2_400_000, 0.6), "english": (1_200_000, 0.4)}
NUM_SAMPLES = 40_000  # fewer than one pass over either source, enough for every run
EXTRA_SAMPLES = 2048
_PROBED, _JUDGED = 64, 256  # windows of each kind
_ITEMS = 16
_LR, _WARMUP_STEPS, _LAST_LR_SHARE, _CLIP = 6e-3, 30, 0.1, 1.0

Windows = NDArray[np.uint8]
Replaced = Mapping[str, Mapping[int, Windows]]
"""By source and index, the bytes `[T + 1]` that a sample has instead."""


class _Partly(Dataset[torch.Tensor]):
    """A dataset in which some samples are replaced."""

    def __init__(self, clean: TextWindows, instead: Mapping[int, Windows]) -> None:
        self._clean, self._instead = clean, instead

    def __len__(self) -> int:
        return len(self._clean)

    def __getitem__(self, index: int) -> torch.Tensor:
        if (window := self._instead.get(index)) is None:
            return self._clean[index]
        return torch.from_numpy(window.astype(np.int64))


def matrix_program(settings: Settings) -> Program:
    """By default two layers, 64 wide, on code and English.

    Overrides that it knows: `replaced`, `width`, `depth`, `lr`, `batch_size`, `warmup_steps`, and
    `extra_source`: the name of one more source, in a stage of its own behind all others.
    """
    replaced: Replaced = settings.get("replaced", {})
    generator = torch.Generator().manual_seed(settings.seed)
    width, depth = settings.get("width", 64), settings.get("depth", 2)
    model = GPT(GPTConfig(width=width, depth=depth, context=CONTEXT), generator)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.get("lr", _LR), betas=(0.9, 0.95), weight_decay=0.1
    )
    steps, warmup_steps = settings.max_steps, settings.get("warmup_steps", _WARMUP_STEPS)

    def share(step: int) -> float:
        warm = min(1.0, (step + 1) / warmup_steps)
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return warm * (_LAST_LR_SHARE + (1 - _LAST_LR_SHARE) * fall)

    stage = Stage(
        name="text",
        sources={k: _Partly(_text(k)[0], replaced.get(k, {})) for k in _KINDS},
        weights={kind: weight for kind, (_, weight) in _KINDS.items()},
        num_samples=NUM_SAMPLES,
    )
    stages = [stage]
    if name := settings.get("extra_source", ""):
        windows = _text("english")[0].windows[:EXTRA_SAMPLES]
        extra = _Partly(TextWindows(windows.tobytes(), CONTEXT), replaced.get(name, {}))
        stages.append(Stage(name=name, sources={name: extra}))
    return Program(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, share),
        stream=Stream(
            stages,
            batch_size=settings.get("batch_size", BATCH_SIZE),
            seed=settings.seed,
            to_text=to_text,
        ),
        loss=next_byte_loss,
        clip=_CLIP,
        held_out=_batches(slice(0, _PROBED)),
        to_text=to_text,
        name=NAME,
    )


def recipe() -> recipes.Recipe:
    """What every run is watched with: the standard one, without rules at the door.

    With rules most of the bad region would not train. Snapshots are written at once, so that
    what is on disk does not depend on how busy the machine is.
    """
    cadence = {"disk_steps": 20, "disk_keep": 4, "asynchronous": False}
    return recipes.standard({"rules": False, "cadence": cadence})


def held_out_loss(model: torch.nn.Module) -> float:
    """Mean loss on held-out text, other than what the Guard probes with; may be non-finite."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            losses = [float(next_byte_loss(model, batch)) for batch in _judged()]
    finally:
        model.train(was_training)
    return float(np.mean(losses))


def is_finite(program: Program) -> bool:
    """Whether every weight and every moment is finite."""
    moments = [v for state in program.optimizer.state.values() for v in state.values()]
    tensors = [*program.model.parameters(), *moments]
    return all(bool(torch.isfinite(t).all()) for t in tensors if isinstance(t, torch.Tensor))


def largest_weight(program: Program) -> float:
    """The largest magnitude of a weight; NaN where one is."""
    return max(float(weight.detach().abs().max()) for weight in program.model.parameters())


def replace_steps(
    program: Program, steps: Mapping[int, int], make: Callable[[Windows], Windows]
) -> dict[str, dict[int, Windows]]:
    """Make other windows of the samples that an undisturbed run meets in some steps.

    Args:
        program: whose order is asked; its data must be clean.
        steps: how many samples of each step, from its first on.
        make: windows `[N, T + 1]` of all of them in order, to windows of the same shape.
    """
    places = [
        (step - 1) * BATCH_SIZE + nth for step, number in steps.items() for nth in range(number)
    ]
    return replace_samples(program, places, make)


def replace_samples(
    program: Program, places: Sequence[int], make: Callable[[Windows], Windows]
) -> dict[str, dict[int, Windows]]:
    """Make other windows of the samples at raw positions of the stream.

    Args:
        program: whose order is asked; its data must be clean.
        places: raw positions.
        make: windows `[N, T + 1]` of all of them in order, to windows of the same shape.
    """
    if not places:
        return {}
    found = [program.stream.order.locate(place) for place in places]
    clean = windows_at(program, places)
    instead: dict[str, dict[int, Windows]] = {}
    for one, window in zip(found, make(clean), strict=True):
        instead.setdefault(one.source, {})[one.index] = window
    return instead


def windows_at(program: Program, places: Sequence[int]) -> Windows:
    """The clean windows `[N, T + 1]` at raw positions of the stream."""
    found = [program.stream.order.locate(place) for place in places]
    return np.stack([_text(_kind(one.source))[0].windows[one.index] for one in found])


def _kind(source: str) -> Kind:
    return next(kind for kind in _KINDS if kind == source)


@lru_cache(maxsize=4)
def _text(kind: Kind) -> tuple[TextWindows, TextWindows]:
    split = load_text(kind, limit_bytes=_KINDS[kind][0], seed=0)
    return TextWindows(split.train, CONTEXT), TextWindows(split.held_out, CONTEXT)


@lru_cache(maxsize=1)
def _judged() -> Sequence[torch.Tensor]:
    return _batches(slice(_PROBED, _PROBED + _JUDGED))


def _batches(part: slice) -> list[Any]:
    windows = np.concatenate([_text(kind)[1].windows[part] for kind in _KINDS])
    return [torch.from_numpy(windows[at::_ITEMS].astype(np.int64)) for at in range(_ITEMS)]
