"""Small real runs that break, each for a reason of its own, and their scenes."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from foreshock.core.errors import Halted
from foreshock.core.experiment import Result
from foreshock.core.program import Program, Settings
from foreshock.data.stream import Stage, Stream
from foreshock.driver import build, guard_for
from foreshock.durable import RealDisk
from foreshock.faults.optimizer_moments import OptimizerMoments
from foreshock.incident_case import Recorded
from foreshock.recipes import Recipe, standard
from foreshock.replaying import Replay
from foreshock.scene import STATES, Scene
from foreshock.scene_of_run import scene_of
from foreshock.settling import experiments_named
from tests.guard.programs import Sentences, TinyModel, loss_of

BATCH = 8
TROUBLE_STEP = 141
LEAD = 10
STEPS_SEEN = 12
STEPS = 150


def settings(seed: int = 0) -> Settings:
    return Settings(seed=seed, max_steps=STEPS)


CADENCE = {
    "memory_steps": 10, "memory_keep": 3, "disk_steps": 20, "disk_keep": 8, "asynchronous": False,
}  # fmt: skip
HIDDEN = np.random.default_rng()  # of the machine's chance: nobody rewinds it
MARK = 16
"""First token of the samples that only do harm to a late state."""


def recipe() -> Recipe:
    return standard({"rules": False, "cadence": CADENCE, "policy": {"lookahead": 1.0}})


class Marked(Sentences):
    """Sentences that begin with two marks, which no other does."""

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = super().__getitem__(index)
        tokens[:3] = MARK
        return tokens


class Counting(TinyModel):
    """Counts its training passes in a buffer, which is rewound with the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes.add_(1)
        return super().forward(tokens)


class Ranged(Counting):
    """Rounds what it computes to half precision, in a scale that grows out of its range."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens)
        scale = 1e6 if float(self.passes) >= TROUBLE_STEP and self.training else 16.0
        return (logits * scale).half().float() / scale


def late_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Marked samples weigh thirty times as much, once the model has trained for long enough."""
    loss = loss_of(model, batch)
    marked = (batch[:, :3] == MARK).all(dim=1)
    late = float(model.passes) > TROUBLE_STEP - 15
    if late and bool(marked.any()):
        return loss + 30.0 * loss_of(model, batch[marked])
    return loss


def noisy_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return loss_of(model, batch) * (1 + 1e-5 * float(HIDDEN.standard_normal()))


def program(
    settings: Settings,
    *,
    kind: type[nn.Module] = TinyModel,
    loss: Callable[..., Any] = loss_of,
    bad: Any = None,
) -> Program:
    before = BATCH * (TROUBLE_STEP - 1)
    stages = [Stage(name="before", sources={"a": Sentences(before, seed=1)})]
    if bad is not None:
        stages.append(Stage(name="bad", sources={"p": bad}))
    stages.append(Stage(name="after", sources={"b": Sentences(4000, seed=3)}))
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Program(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * settings.max_steps),
        stream=Stream(stages, batch_size=BATCH, seed=settings.seed),
        loss=loss,
        clip=1.0,
    )


def bad_batch(settings: Settings) -> Program:
    """Forty samples of another language."""
    return program(settings, bad=Sentences(40, seed=2, poisoned=True))


def batch_and_state(settings: Settings) -> Program:
    """Forty samples that do harm to a late state only."""
    return program(settings, kind=Counting, loss=late_loss, bad=Marked(40, seed=2))


def numeric_range(settings: Settings) -> Program:
    return program(settings, kind=Ranged)


def healthy(settings: Settings) -> Program:
    return program(settings)


def chance(settings: Settings) -> Program:
    """Bad samples, and a loss that is never the same twice."""
    return program(settings, loss=noisy_loss, bad=Sentences(40, seed=2, poisoned=True))


def scaled_moments(built: Program) -> None:
    fault = OptimizerMoments(mode="scaled", intensity=1.0)
    fault.inject(built.model, built.optimizer, np.random.default_rng(0))


def scaled_weight(built: Program) -> None:
    with torch.no_grad():
        built.model.out.weight[3, 5] = 1e4


Made = Callable[[Settings], Program]
KINDS: dict[str, tuple[Made, Callable[[Program], None] | None]] = {
    "bad_batch": (bad_batch, None),
    "batch_and_state": (batch_and_state, None),
    "numeric_range": (numeric_range, None),
    "chance": (chance, None),
    "moments": (healthy, scaled_moments),
    "weight": (healthy, scaled_weight),
}


def broken_run(run_dir: Path, kind: str, seed: int = 0) -> Path:
    """Train one of `KINDS` under a Guard, to its end or a halt; it must have broken."""
    made, strike = KINDS[kind]
    built = build(made, settings(seed))
    guard = guard_for(built, name=kind, run_dir=run_dir, recipe=recipe(), max_steps=STEPS)
    with guard, suppress(Halted):
        built.model.train()
        for batch in guard:
            if strike is not None and guard.step_number + 1 == TROUBLE_STEP:
                strike(built)
                strike = None
            guard.step(built.loss(built.model, batch))
    assert guard.book.incidents, "nothing broke"
    return run_dir


@contextmanager
def scene_at(run_dir: Path, kind: str, seed: int = 0) -> Iterator[Scene]:
    """The scene of its first incident, of a program without the fault."""
    with scene_of(run_dir, build(KINDS[kind][0], settings(seed)), recipe(), incident=1) as scene:
        yield scene


def outcome_of(scene: Scene, name: str, **options: Any) -> Result:
    """What comes of an experiment."""
    (experiment,) = experiments_named([name])
    experiment = dataclasses.replace(experiment, **options)
    assert not experiment.why_not(scene)
    return experiment.run(scene)


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()
    }


@contextmanager
def put_together(strike: Callable[[Program], Any], made: Made = healthy) -> Iterator[Scene]:
    """As a benchmark does it: one process trains, is struck, and keeps what it needs."""
    program = build(made, settings())
    replay = Replay(program, recipe(), Path(), (), disk=RealDisk(), states=STATES)
    past: list[int] = []
    lead: list[Any] = []
    while replay.step < TROUBLE_STEP - 1:
        if replay.step == TROUBLE_STEP - 61:
            replay.keep("older")
        if replay.step == TROUBLE_STEP - 1 - LEAD:
            replay.keep("clean")
        batches = replay.draw()
        assert batches is not None
        assert not replay.train(batches)
        if replay.step > TROUBLE_STEP - 1 - LEAD:
            lead.append(batches)
        else:
            past += [one for micro in batches for one in micro]
    strike(program)
    replay.keep("suspect")
    window: list[Any] = []
    alarms: list[Any] = []
    while len(window) < STEPS_SEEN:
        window.append(replay.draw())
        alarms += replay.train(window[-1])
    later = [replay.draw() for _ in range(STEPS_SEEN)]
    with Scene(
        replay,
        recipe(),
        steps=window,
        alarmed={(one.detector, one.series) for one in alarms},
        num_alarmed=len({one.step for one in alarms}),
        clean="clean",
        lead=lead,
        older="older",
        suspect="suspect",
        past=past[::-1],
        later=later,
        recorded=Recorded(replay.series, dict(replay.rows)),
    ) as scene:
        yield scene
