"""Mirror a run in MLflow."""

import importlib
import os
import re
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foreshock.core.errors import MissingExtra
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun
from foreshock.core.settings import secret
from foreshock.core.sink import Mirror, MirrorSink, NoticeKind

_MAX_METRICS: Final = 1000
"""In one request; MLflow's own limit."""

_MAX_NAME_CHARS: Final = 250
_MAX_TAG_CHARS: Final = 5000
_REFUSED: Final = re.compile(r"[^0-9A-Za-z_.\- /]")


@dataclass(frozen=True, kw_only=True)
class Mlflow(MirrorSink):
    """Log metrics to the active MLflow run of the loop if it has one, else to a run of its own.

    The step is the optimizer step. MLflow keeps every value with its time, so that after a
    rollback a step has several: the newest is that of the last attempt, and
    `foreshock/attempt` says which each belongs to. The last alarms and the last notice are tags.

    MLflow's own telemetry is turned off (MLFLOW_DISABLE_TELEMETRY) unless the loop has imported
    MLflow before, or the variable is set.

    Args:
        tracking_uri: MLflow's store or server; MLflow's own default if empty. Kept back, as it
            may hold a password.
        experiment: the experiment of a run begun for it.
        run_name: what to call it; the run directory's name if empty.
        run_id: a run that exists, to be logged to in place of all this.
        prefix: what the names begin with. Letters that MLflow refuses in a name become "_",
            and a checksum keeps two such names apart.
    """

    name: ClassVar[str] = "mlflow"
    tracking_uri: str = secret(default="")
    experiment: str = "foreshock"
    run_name: str = ""
    run_id: str = ""
    prefix: str = "foreshock/"

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        if "mlflow" not in sys.modules:  # what the loop has begun to use is the loop's affair
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            mlflow = importlib.import_module("mlflow")
            entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise MissingExtra("MLflow needs mlflow: pip install 'foreshock[mlflow]'") from error
        return [_Run(mlflow, entities, self, run)]


class _Run:
    """An MLflow run; see `Mirror`."""

    label = "mlflow"

    def __init__(self, mlflow: Any, entities: Any, options: Mlflow, mirrored: MirroredRun) -> None:
        self._mlflow, self._entities = mlflow, entities
        self._options, self._mirrored = options, mirrored
        self._uri = options.tracking_uri or None
        self._run_id = options.run_id
        self._is_own = False
        self._halted = False
        self._client: Any = None
        self._names: dict[str, str] = {}

    def adopt(self) -> None:
        active = self._mlflow.active_run()  # of this thread
        if not self._run_id and active is not None:
            self._run_id, self._uri = active.info.run_id, self._mlflow.get_tracking_uri()

    def open(self) -> None:
        client = self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        if self._run_id:
            client.get_run(self._run_id)
            return
        options = self._options
        experiment = client.get_experiment_by_name(options.experiment)
        number = (
            client.create_experiment(options.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        name = options.run_name or self._mirrored.name
        tags = {"foreshock.run_dir": self._mirrored.run_dir[:_MAX_TAG_CHARS]}
        self._run_id = client.create_run(number, run_name=name, tags=tags).info.run_id
        self._is_own = True

    def take(self, said: Sequence[Mirrored]) -> None:
        metrics: list[Any] = []
        tags: dict[str, str] = {}
        for one in said:
            if isinstance(one, MirroredNotice):
                self._halted = one.notice.kind is NoticeKind.HALTED
                tags["foreshock.notice"] = f"{one.notice.title}\n{one.notice.body}"
                continue
            time_ms = round(1000 * one.time_secs)
            scalars = one.scalars(self._options.prefix)
            metrics += [
                self._entities.Metric(self._known(name), value, time_ms, one.step)
                for name, value in scalars.items()
            ]
            if one.alarms:
                tags["foreshock.alarms"] = "\n".join(one.alarm_lines())
        for first in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _MAX_METRICS])
        for key, text in tags.items():
            self._client.set_tag(self._run_id, key, text[:_MAX_TAG_CHARS])

    def close(self) -> None:
        if self._is_own:
            self._client.set_terminated(self._run_id, "FAILED" if self._halted else "FINISHED")

    def _known(self, name: str) -> str:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _allowed(name)
        return known


def _allowed(name: str) -> str:
    """The name of a metric as MLflow takes it: no path that is not its shortest form, either.

    >>> _allowed("foreshock/loss/global"), _allowed("a/../b:c")
    ('foreshock/loss/global', 'a/-/b_c.41d18da7')
    """
    parts = [part if part.strip(".") else "-" for part in _REFUSED.sub("_", name).split("/")]
    found = "/".join(parts)[:_MAX_NAME_CHARS]
    if found == name:
        return name
    return f"{found[: _MAX_NAME_CHARS - 9]}.{zlib.crc32(name.encode()):08x}"
