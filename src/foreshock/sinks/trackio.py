"""Mirror a run in trackio, and raise its alerts."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun
from foreshock.core.settings import secret
from foreshock.core.sink import Mirror, MirrorSink, Notice, NoticeKind
from foreshock.core.text import one_line

_MAX_TITLE_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Trackio(MirrorSink):
    """Log to the loop's own trackio run if it has one, else to a run begun for it.

    The step is the optimizer step. trackio keeps every row: after a rollback a step has several,
    told apart by `foreshock/attempt`.

    Nothing is sent unless `space_id` or `server_url` says where to, or trackio's own environment
    variables do. Where you are logged in to the Hub, trackio itself asks it for your name.

    Args:
        project: the project of a run begun for it.
        run_name: what to call it; the run directory's name if empty. A run of this name goes on.
        space_id: the Space that trackio sends to.
        server_url: or the server; kept back, as it holds the token.
        prefix: what the names begin with.
        alerts: whether notices and alarms raise trackio alerts.
        run: a `trackio.Run` to log to, in place of all this.

    Raises:
        ConfigError: the run is none.
    """

    name: ClassVar[str] = "trackio"
    project: str = "foreshock"
    run_name: str = ""
    space_id: str = ""
    server_url: str = secret(default="")
    prefix: str = "foreshock/"
    alerts: bool = True
    run: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run is not None and not hasattr(self.run, "log"):
            raise ConfigError(
                f"sinks.trackio.run is {self.run!r:.80}; it must be a trackio.Run, which only "
                "code can give"
            )

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        try:
            trackio = importlib.import_module("trackio")
            variables = importlib.import_module("trackio.context_vars")
        except ImportError as error:
            raise MissingExtra("trackio is not there: pip install 'foreshock[trackio]'") from error
        return [_Run(trackio, variables, self, run)]


class _Run:
    """A trackio run; see `Mirror`."""

    label = "trackio"

    def __init__(self, trackio: Any, variables: Any, options: Trackio, run: MirroredRun) -> None:
        self._trackio, self._variables = trackio, variables
        self._options, self._mirrored = options, run
        self._run: Any = options.run
        self._is_own = False

    def adopt(self) -> None:
        if self._run is None:
            self._run = self._variables.current_run.get()  # of this thread

    def open(self) -> None:
        if self._run is not None:
            return
        options = self._options
        self._run = self._trackio.init(
            project=options.project,
            name=options.run_name or self._mirrored.name,
            space_id=options.space_id or None,
            server_url=options.server_url or None,
            config={"foreshock_run_dir": self._mirrored.run_dir},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._is_own = True

    def take(self, said: Sequence[Mirrored]) -> None:
        for one in said:
            if isinstance(one, MirroredNotice):
                self._alert(one, one.notice.title, one.notice.body, self._level(one.notice))
                continue
            self._run.log(one.scalars(self._options.prefix), step=one.step)
            if one.alarms:
                lines = "\n".join(one.alarm_lines())
                title = f"alarms at step {one.step}"
                self._alert(one, title, lines, self._trackio.AlertLevel.WARN)

    def close(self) -> None:
        if self._is_own:
            self._run.finish()

    def _alert(self, said: Mirrored, title: str, text: str, level: Any) -> None:
        if self._options.alerts:
            shown = "\n".join(one_line(line, len(line)) for line in text.splitlines())
            title = one_line(title, _MAX_TITLE_CHARS)
            self._run.alert(title=title, text=shown, level=level, step=said.step)

    def _level(self, notice: Notice) -> Any:
        levels = self._trackio.AlertLevel
        if notice.kind is NoticeKind.RECOVERED:
            return levels.INFO
        return levels.ERROR if notice.urgent else levels.WARN
