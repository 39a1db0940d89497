"""Runs a Program: the thin driver that every command shares."""

import importlib.util
import inspect
import random
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.probe import Probe
from foreshock.core.program import Program, ProgramFunction, Settings
from foreshock.data.stream import Stream
from foreshock.guard import Guard
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.several import as_one_optimizer, as_one_scheduler


def load_program(reference: str) -> ProgramFunction:
    """Load `PATH.py:function`. The file is executed, as `python PATH.py` would be.

    Raises:
        ProgramError: the reference, the file or the function is not as it should be.
    """
    path_text, _, name = reference.rpartition(":")
    if not path_text or not name:
        raise ProgramError(f"{reference!r} is not of the form PATH.py:function")
    path = Path(path_text)
    if not path.is_file():
        raise ProgramError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.get(path.stem)
    if known is None or getattr(known, "__file__", None) == spec.origin:
        sys.modules[path.stem] = module  # where pickle and dataclasses look for it
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{path} raised {_what(error)}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        offered = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ProgramError(
            f"{path} has no function {name!r}; it has {', '.join(offered) or 'none'}"
        )
    return cast(ProgramFunction, function)


def build(function: ProgramFunction, settings: Settings) -> Program:
    """Seed the global generators and call a program function.

    Raises:
        ProgramError: it raises, or what it returns is not a usable Program.
    """
    seed_everything(settings.seed)
    name = getattr(function, "__name__", "program")
    try:
        program = function(settings)
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{name} raised {_what(error)}") from error
    if not isinstance(program, Program):
        raise ProgramError(
            f"{name} returned a {type(program).__name__}; it must return a foreshock.Program"
        )
    program = replace(
        program,
        optimizer=as_one_optimizer(program.optimizer),
        scheduler=as_one_scheduler(program.scheduler),
    )
    for field, kind in (("model", torch.nn.Module), ("optimizer", torch.optim.Optimizer)):
        value = getattr(program, field)
        if not isinstance(value, kind):
            raise ProgramError(
                f"{name}: Program.{field} is a {type(value).__name__}, not a {kind.__name__}"
            )
    if not isinstance(program.stream, Stream):
        raise ProgramError(
            f"{name}: Program.stream is a {type(program.stream).__name__}; make a "
            "foreshock.Stream of your map-style datasets"
        )
    if program.stream.order.total == 0:
        raise ProgramError(f"{name}: Program.stream has no data")
    if not callable(program.loss):
        raise ProgramError(
            f"{name}: Program.loss is a {type(program.loss).__name__}; make it a function of "
            "(model, batch) that returns a tensor or a foreshock.Loss"
        )
    return program


def guard_for(
    program: Program,
    *,
    name: str,
    run_dir: str | Path,
    facts: Mapping[str, Any] | None = None,
    **options: Any,
) -> Guard:
    """Build the Guard of a program; `options` are those of `Guard`."""
    guard = Guard(
        program.model,
        program.optimizer,
        program.stream,
        run_dir=run_dir,
        scheduler=program.scheduler,
        scaler=program.scaler,
        clip=program.clip,
        accumulate=program.accumulate,
        probes=probes_of(program),
        terms=program.terms,
        per_sample=program.per_sample,
        facts={"precision": program.precision, **(facts or {})},
        name=program.name or name,
        **options,
    )
    for key, thing in program.track.items():
        guard.track(key, thing)
    return guard


def probes_of(program: Program) -> list[Probe]:
    """What a program is probed with: its loss on held-out data, and probes of its own."""
    probes: list[Probe] = []
    if len(program.held_out):
        probes.append(HeldOutLoss(batches=program.held_out, loss=program.loss))
    return [*probes, *program.probes]


def train(program: Program, guard: Guard) -> None:
    """The plain loop, to its end.

    Raises:
        ProgramError: the program's loss raises.
    """
    program.model.train()
    for batch in guard:
        try:
            loss = program.loss(program.model, batch)
        except Exception as error:
            raise ProgramError(
                f"step {guard.step_number + 1}: the program's loss raised {_what(error)}"
            ) from error
        guard.step(loss)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators.

    Raises:
        ConfigError: the seed is not in [0, 2**63).
    """
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}; it must be at least 0 and below 2**63")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _what(error: BaseException) -> str:
    """An exception on one line, with the place in the user's file that raised it."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    others = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")
    foreign = (str(Path(__file__).parent), *others)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(foreign)]
    if isinstance(error, SyntaxError) or not own:
        return said
    return f"{said} ({own[-1].filename}, line {own[-1].lineno})"
