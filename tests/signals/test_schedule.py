"""Learning rate and loss scale as the step used them."""

import pytest
import torch

from foreshock.core.signal import Moment, Site
from foreshock.observation import Observation
from foreshock.signals.schedule import ScheduleSignal
from foreshock.update import Update


def site_of(parameter: torch.nn.Parameter, scaler: object) -> Site:
    return Site(model=None, optimizer=None, scaler=scaler, parameters=(("w", parameter),))


def test_the_scale_is_the_one_before_the_scaler_halves_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    update = Update(optimizer, [("w", parameter)], scaler=scaler)
    observation = Observation((ScheduleSignal(),), site_of(parameter, scaler), lag_steps=0)
    assert observation.series == ("lr/global", "loss_scale/global")
    rows = []
    for step, factor in enumerate((1.0, torch.inf, 1.0), start=1):
        update.backward((parameter * factor).sum())
        (norms, *_), norm = update.gradient_sizes()
        moment = Moment(step=step, loss=norm, grad_norms=norms, grad_norm=norm, lr=update.lr(0.5))
        observation.before_update(moment)
        commit = update.commit_or_skip(norm, torch.inf, 0.5)
        observation.after_update(moment, commit)
        rows += list(observation.read())
    assert [row.committed for row in rows] == [True, False, True]
    assert [row.values.tolist() for row in rows] == [[0.125, 1024], [0.125, 1024], [0.125, 512]]


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", enabled=False)])
def test_without_a_working_scaler_there_is_no_scale(scaler: object) -> None:
    attached = ScheduleSignal().attach(site_of(torch.nn.Parameter(torch.ones(1)), scaler))
    assert attached.series == ("lr/global",)
