"""Mirror a run in Weights & Biases, and raise its alerts."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun, MirroredStep
from foreshock.core.sink import Mirror, MirrorSink, Notice, NoticeKind

_MODES: Final = ("", "offline", "online")
_MAX_TITLE_CHARS: Final = 63
_SERVICE_SECS: Final = 10
"""How long W&B may try to begin or to end a run, as the end of a process waits for it."""


@dataclass(frozen=True, kw_only=True)
class Wandb(MirrorSink):
    """Log to the loop's own W&B run if it has one, else to a run begun for it.

    Everything is logged below `prefix`, with `foreshock/step` and `foreshock/attempt` as values
    of each row and the former as the axis: W&B's own step only rises, and never goes back with
    a rollback. What was undone stays visible, told apart by `foreshock/attempt`.

    A run of the loop's own is never given rows, since those would move its step on and W&B drops
    what is then logged with `step=`: values join the next row that the loop logs itself, the
    newest ones where several came in between. It is not finished either.

    W&B's own error reports, which it sends even offline, are turned off (WANDB_ERROR_REPORTING)
    unless the loop has imported wandb before, or the variable is set.

    Args:
        project: the W&B project of a run begun for it.
        entity: user or team; W&B's default if empty.
        run_name: what to call it; the run directory's name if empty.
        group: the group that it belongs to.
        id: an id of your choice, to go on in the same W&B run after a restart.
        mode: "online" sends to the service, "offline" keeps files for `wandb sync`; if empty,
            what the environment variable WANDB_MODE says, else offline.
        dir: where W&B keeps its files; a folder `wandb` here if empty.
        prefix: what the names begin with.
        alerts: whether notices and alarms raise W&B alerts, which W&B sends on by mail or
            Slack as the user has set it.
        alert_wait_secs: least time between two alerts for alarms.
        run: a `wandb.Run` to log to, in place of all this.

    Raises:
        ConfigError: `mode` does not exist, or `alert_wait_secs` is below 0.
    """

    name: ClassVar[str] = "wandb"
    project: str = "foreshock"
    entity: str = ""
    run_name: str = ""
    group: str = ""
    id: str = ""
    mode: str = ""
    dir: str = ""
    prefix: str = "foreshock/"
    alerts: bool = True
    alert_wait_secs: float = 300.0
    run: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in _MODES:
            raise ConfigError(f"sinks.wandb.mode is {self.mode!r:.80}; use 'online' or 'offline'")
        if not self.alert_wait_secs >= 0:
            raise ConfigError(
                f"sinks.wandb.alert_wait_secs is {self.alert_wait_secs}; it must be 0 or more"
            )
        if self.run is not None and not hasattr(self.run, "log"):
            raise ConfigError(
                f"sinks.wandb.run is {self.run!r:.80}; it must be a wandb.Run, which only code "
                "can give"
            )

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        if "wandb" not in sys.modules:  # what the loop has begun to use is the loop's affair
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingExtra("W&B needs wandb: pip install 'foreshock[wandb]'") from error
        return [_Run(wandb, self, run)]


class _Run:
    """A W&B run; see `Mirror`."""

    label = "wandb"

    def __init__(self, wandb: Any, options: Wandb, mirrored: MirroredRun) -> None:
        self._wandb, self._options, self._mirrored = wandb, options, mirrored
        self._run: Any = options.run
        self._is_own = False

    def adopt(self) -> None:
        if self._run is None:
            self._run = self._wandb.run

    def open(self) -> None:
        options, wandb = self._options, self._wandb
        if self._run is None:
            settings = wandb.Settings(
                silent=True,
                console="off",
                init_timeout=_SERVICE_SECS,
                finish_timeout=_SERVICE_SECS,
                x_graphql_timeout_seconds=_SERVICE_SECS / 2,
                x_graphql_retry_max=1,
            )
            self._run = wandb.init(
                project=options.project,
                entity=options.entity or None,
                name=options.run_name or self._mirrored.name,
                group=options.group or None,
                id=options.id or None,
                resume="allow" if options.id else None,
                mode=options.mode or (None if "WANDB_MODE" in os.environ else "offline"),
                dir=options.dir or None,
                config={"foreshock_run_dir": self._mirrored.run_dir},
                settings=settings,
                reinit="create_new",
            )
            self._is_own = True
        axis = f"{options.prefix}step"
        self._run.define_metric(axis)
        self._run.define_metric(f"{options.prefix}*", step_metric=axis)

    def take(self, said: Sequence[Mirrored]) -> None:
        for one in said:
            if isinstance(one, MirroredNotice):
                if self._options.alerts:
                    self._alert(one.notice)
                continue
            # A row of our own in a run that is not would move its step on.
            self._run.log(one.scalars(self._options.prefix), commit=self._is_own)
            if one.alarms and self._options.alerts:
                self._alert_of_alarms(one)

    def close(self) -> None:
        if self._is_own:
            self._run.finish()

    def _alert(self, notice: Notice) -> None:
        level = self._wandb.AlertLevel.WARN
        if notice.kind is NoticeKind.RECOVERED:
            level = self._wandb.AlertLevel.INFO
        elif notice.urgent:
            level = self._wandb.AlertLevel.ERROR
        title = notice.title[:_MAX_TITLE_CHARS]
        self._run.alert(title, notice.body, level=level, wait_duration=1)

    def _alert_of_alarms(self, step: MirroredStep) -> None:
        # One title for all, by which W&B tells whether it is too early for another.
        title = f"{self._mirrored.name[: _MAX_TITLE_CHARS - 8]}: alarms"
        text = "\n".join(step.alarm_lines())
        wait = self._options.alert_wait_secs
        level = self._wandb.AlertLevel.WARN
        self._run.alert(title, text, level=level, wait_duration=wait)
