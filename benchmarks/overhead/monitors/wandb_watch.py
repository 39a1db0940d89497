"""`wandb.watch`: histograms of every parameter and gradient."""

from pathlib import Path
from typing import Any

from benchmarks.overhead.monitor import Monitor, installed
from benchmarks.overhead.training import Training


class WandbWatch(Monitor):
    """`run.watch(log="all", log_freq=1)` in an offline run, and the `run.log` that sends it."""

    name = "wandb_watch"
    package = "wandb"
    notes = (
        "offline; run.log, without which nothing is recorded, is counted; the service's own "
        "process and wandb's threads are not; system statistics are off"
    )

    def attach(self, training: Training, folder: Path) -> None:
        wandb = installed("wandb")
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True
        )
        self._run = wandb.init(
            project="overhead", mode="offline", dir=str(folder), settings=settings
        )
        self._run.watch(training.model, log="all", log_freq=1)

    def after_update(self) -> None:
        with self.clock.part("run.log"):
            self._run.log({})

    def close(self) -> None:
        self._run.finish()

    def facts(self) -> dict[str, Any]:
        return {"num_steps_recorded": self._run.step}
