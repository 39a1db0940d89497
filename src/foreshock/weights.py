"""A model's weights from a run directory or a safetensors file, put into a model of the same shape.

Nothing in a file is run. What is read of a run is verified by its digests, without a lock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import safetensors
import safetensors.torch
import torch

from foreshock.core.comparison import growth_of
from foreshock.core.errors import ConfigError, SnapshotError
from foreshock.core.reading import from_json_whole
from foreshock.core.snapshot import SnapshotRef, in_lineage
from foreshock.durable import RealDisk
from foreshock.run_view import view_run
from foreshock.snapshots.codec import DAMAGE
from foreshock.snapshots.disk import DiskStore

_MAX_NEIGHBOURS: Final = 6


@final
@dataclass(frozen=True, kw_only=True)
class Weights:
    """Where a model's weights are; `find_weights` finds them.

    Attributes:
        path: the safetensors file, or the run directory.
        ref: the snapshot of the run; None for a file.
    """

    path: Path
    ref: SnapshotRef | None

    @property
    def label(self) -> str:
        """What it is, for people."""
        return str(self.path) if self.ref is None else f"{self.path}@{self.ref.step}"

    def load_into(self, model: torch.nn.Module) -> None:
        """Put the weights into a model.

        Raises:
            SnapshotError: the file is damaged, or its weights are not those of this model.
        """
        state, buffers = self._read()
        _fit(self.label, state, model)
        with torch.no_grad():
            model.load_state_dict(state, strict=False)
            live = dict(model.named_buffers())
            for name, value in buffers.items():
                if name in live and live[name].shape == value.shape:
                    live[name].copy_(value)

    def _read(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        try:
            if self.ref is None:
                return safetensors.torch.load_file(self.path), {}
            tree = _store(self.path).read(self.ref.id)["training"]["model"]
            return dict(tree["state"]), dict(tree["buffers"])
        except (OSError, safetensors.SafetensorError, *DAMAGE) as error:
            raise SnapshotError(f"{self.label}: no weights can be read ({error!s:.200})") from error


def find_weights(given: str) -> Weights:
    """Find `RUN`, `RUN@STEP`, `RUN@SNAPSHOT` or a safetensors file.

    `RUN` alone is its newest durable snapshot. Of several at one step it is the one that the
    run went on from.

    Raises:
        ConfigError: there is no such file or snapshot.
        RunDirError: the directory is no run's.
    """
    path, wanted = Path(given), ""
    if not path.exists() and "@" in given:
        name, _, wanted = given.rpartition("@")
        path = Path(name)
    if path.is_file():
        return Weights(path=path, ref=None)
    if not path.is_dir():
        raise ConfigError(
            f"there is no {path}; give a run directory, RUN@STEP, RUN@SNAPSHOT or a safetensors "
            "file"
        )
    living, undone = _snapshots(path)
    fit = [ref for ref in undone + living if wanted in ("", ref.id, str(ref.step))]
    if not wanted:
        fit = [ref for ref in fit if ref in living] or fit
    if not fit:
        there = ", ".join(str(ref.step) for ref in sorted(living, key=lambda ref: ref.step))
        raise ConfigError(f"{path} has no snapshot {wanted!r}; it has steps {there or 'none'}")
    return Weights(path=path, ref=fit[-1])


def neighbours_of(weights: Weights) -> list[Weights]:
    """The healthy snapshots before these, oldest first, by which healthy movement is known."""
    if weights.ref is None:
        return []
    living, _ = _snapshots(weights.path)
    older = [ref for ref in living if ref.step < weights.ref.step and ref.health.healthy]
    return [Weights(path=weights.path, ref=ref) for ref in older[-_MAX_NEIGHBOURS:]]


def growth_between(before: Weights, after: Weights, neighbours: list[Weights]) -> float:
    """How many times further apart two states are than neighbours, as a random walk goes.

    The root of the ratio of steps, 1 at least; 1 too where steps are not known.
    """
    if before.ref is None or after.ref is None or before.path != after.path:
        return 1.0
    steps = [one.ref.step for one in neighbours if one.ref is not None]
    return growth_of(before.ref.step, after.ref.step, steps)


def _store(run_dir: Path) -> DiskStore:
    return DiskStore(RealDisk(), run_dir / "snapshots")


def _snapshots(run_dir: Path) -> tuple[list[SnapshotRef], list[SnapshotRef]]:
    """Those of the run's lineage, and those that it has undone, oldest first."""
    view = view_run(RealDisk(), run_dir)
    rollbacks = [
        (from_json_whole(record["attempt"]), from_json_whole(record["step"]))
        for record in view.records
        if record.get("kind") == "attempt_started"
    ]
    refs = sorted(_store(run_dir).refs()[0], key=lambda ref: (ref.step, ref.attempt))
    living = [ref for ref in refs if in_lineage(ref, rollbacks)]
    return living, [ref for ref in refs if ref not in living]


def _fit(label: str, state: Mapping[str, Any], model: torch.nn.Module) -> None:
    """Refuse weights that are not those of the model; tied ones may stand once."""
    wanted = {key: value for key, value in model.state_dict().items() if torch.is_tensor(value)}
    places = {wanted[key].data_ptr() for key in state if key in wanted and wanted[key].numel()}
    missing = [
        key for key, value in wanted.items() if key not in state and value.data_ptr() not in places
    ]
    unknown = [key for key in state if key not in wanted]
    shapes = [
        f"{key} is {tuple(state[key].shape)}, not {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    problems = [f"{key} is missing" for key in missing] + shapes
    problems += [f"the model has no {key}" for key in unknown]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise SnapshotError(
            f"{label} holds the weights of another model: {'; '.join(problems[:3])}{more}. Give "
            "the program, and by --set the sizes, that it was trained with"
        )
