"""Mirror a run in SwanLab."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun
from foreshock.core.sink import Mirror, MirrorSink

_MODES: Final = ("offline", "local", "online")


@dataclass(frozen=True, kw_only=True)
class SwanLab(MirrorSink):
    """Log to the loop's own SwanLab run if it has one, else to a run begun for it.

    SwanLab takes one value of a metric a step, and its axes must not fall: its step counts what
    is mirrored, so that what a rollback undid stays visible, and `foreshock/step` and
    `foreshock/attempt` say where the run stood. Alarms and notices are texts.

    Args:
        project: the project of a run begun for it.
        run_name: what to call it; the run directory's name if empty.
        workspace: user or organisation; SwanLab's default if empty.
        mode: "offline" keeps files for `swanlab sync`, "local" keeps them for a board on this
            machine, "online" sends to the service.
        log_dir: where SwanLab keeps its files; `swanlog` here if empty.
        prefix: what the names begin with.
        run: a `swanlab.Run` to log to, in place of all this.

    Raises:
        ConfigError: `mode` does not exist.
    """

    name: ClassVar[str] = "swanlab"
    project: str = "foreshock"
    run_name: str = ""
    workspace: str = ""
    mode: str = "offline"
    log_dir: str = ""
    prefix: str = "foreshock/"
    run: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in _MODES:
            raise ConfigError(
                f"sinks.swanlab.mode is {self.mode!r:.80}; there are {', '.join(_MODES)}"
            )
        if self.run is not None and not hasattr(self.run, "log"):
            raise ConfigError(
                f"sinks.swanlab.run is {self.run!r:.80}; it must be a swanlab.Run, which only "
                "code can give"
            )

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        try:
            swanlab = importlib.import_module("swanlab")
        except ImportError as error:
            raise MissingExtra("SwanLab needs swanlab: pip install 'foreshock[swanlab]'") from error
        return [_Run(swanlab, self, run)]


class _Run:
    """A SwanLab run; see `Mirror`."""

    label = "swanlab"

    def __init__(self, swanlab: Any, options: SwanLab, mirrored: MirroredRun) -> None:
        self._swanlab, self._options, self._mirrored = swanlab, options, mirrored
        self._run: Any = options.run
        self._is_own = False
        self._number = 0

    def adopt(self) -> None:
        if self._run is None and self._swanlab.has_run():
            self._run = self._swanlab.get_run()

    def open(self) -> None:
        if self._run is not None:
            return
        options = self._options
        # In this thread: in the main one SwanLab would take over what Ctrl-C does.
        self._run = self._swanlab.init(
            project=options.project,
            workspace=options.workspace or None,
            name=options.run_name or self._mirrored.name,
            mode=options.mode,
            log_dir=options.log_dir or None,
            config={"foreshock_run_dir": self._mirrored.run_dir},
        )
        self._is_own = True

    def take(self, said: Sequence[Mirrored]) -> None:
        prefix = self._options.prefix
        for one in said:
            self._number += 1
            if isinstance(one, MirroredNotice):
                text = f"{one.notice.title}\n\n{one.notice.body}"
                logged: dict[str, Any] = {f"{prefix}notice": self._swanlab.Text(text)}
            else:
                logged = dict(one.scalars(prefix))
                if one.alarms:
                    text = "\n".join(one.alarm_lines())
                    logged[f"{prefix}alarms"] = self._swanlab.Text(text)
            self._run.log(logged, step=self._number)

    def close(self) -> None:
        if self._is_own:
            self._run.finish()
