"""Schedules under the Guard: stepped once a step, or refused."""

import warnings

import pytest
import torch

from foreshock.core.errors import ConfigError
from tests.guard.programs import guarded, make, run


def test_a_schedule_that_needs_a_metric_is_refused_before_anything_is_written(tmp_path):
    training = make(scheduler=None)
    training.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(training.optimizer)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau needs a metric"):
        guarded(training, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_skipped_first_update_brings_no_warning_of_torch(tmp_path):
    training = make()

    def spoil(guard, training):
        if guard.step_number == 0:
            weight = training.model.out.weight
            weight.register_hook(lambda gradient: gradient * torch.nan)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(training, guarded(training, tmp_path / "run", max_steps=1), before_step=spoil)
    assert training.scheduler.last_epoch == 1
