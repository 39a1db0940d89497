"""One buffer a step, read a fixed lag later."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from foreshock.core.errors import ConfigError
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site
from foreshock.observation import Observation

PARAMETER = torch.nn.Parameter(torch.ones(2))
SITE = Site(model=torch.nn.LayerNorm(2), optimizer=None, parameters=(("w", PARAMETER),))


class _Loss(Attached):
    def __init__(self, name: str, *, live: bool) -> None:
        self.series = (f"{name}/a", f"{name}/b")
        self.live = torch.zeros(2) if live else None
        self.prepared = 0
        self.detached = False

    def prepare(self, moment: Moment) -> None:
        self.prepared += 1

    def measure(self, moment: Moment) -> Any:
        if self.live is None:
            return [float(moment.loss), torch.tensor(7.0, dtype=torch.float64)]
        self.live.copy_(moment.loss.expand(2))
        return self.live

    def detach(self) -> None:
        self.detached = True

    def state_dict(self) -> dict[str, Any]:
        return {"prepared": self.prepared}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.prepared = state["prepared"]


@dataclass(frozen=True, kw_only=True)
class Early(Signal):
    name: ClassVar[str] = "early"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none"

    def attach(self, site: Site) -> Attached | None:
        return ATTACHED.setdefault(self.name, _Loss(self.name, live=True))


class Late(Early):
    name: ClassVar[str] = "late"
    phase: ClassVar[Phase] = Phase.UPDATE

    def attach(self, site: Site) -> Attached | None:
        return ATTACHED.setdefault(self.name, _Loss(self.name, live=False))


class Nothing(Early):
    name: ClassVar[str] = "nothing"

    def attach(self, site: Site) -> Attached | None:
        return None


class Failing(Early):
    name: ClassVar[str] = "failing"

    def attach(self, site: Site) -> Attached | None:
        raise ValueError("cannot attach")


ATTACHED: dict[str, _Loss] = {}


@pytest.fixture(autouse=True)
def nothing_attached() -> None:
    ATTACHED.clear()


def step(observation: Observation, number: int, *, commit: bool = True) -> None:
    none = torch.zeros(1)
    moment = Moment(
        step=number,
        loss=torch.tensor(float(number)),
        grad_norms=none,
        grad_norm=none[0],
        lr=0.1,
    )
    observation.before_update(moment)
    observation.after_update(moment, torch.tensor(commit))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_each_step_is_read_exactly_lag_steps_later(lag: int) -> None:
    observation = Observation((Early(),), SITE, lag)
    for number in range(1, 8):
        step(observation, number, commit=number % 2 == 0)
        rows = list(observation.read())
        assert [row.step for row in rows] == ([number - lag] if number > lag else [])
        for row in rows:
            assert row.values.tolist() == [row.step, row.step]
            assert row.committed == (row.step % 2 == 0)
        assert observation.num_pending == min(lag, number)
    assert [row.step for row in observation.read(drain=True)] == list(range(8 - lag, 8))
    assert list(observation.read(drain=True)) == []


def test_a_row_that_is_not_taken_waits() -> None:
    observation = Observation((Early(),), SITE, 0)
    for number in (1, 2, 3):
        step(observation, number)
    for row in observation.read():
        assert row.step == 1
        break
    assert [row.step for row in observation.read()] == [2, 3]


def test_what_time_went_back_over_is_forgotten() -> None:
    observation = Observation((Early(),), SITE, 3)
    step(observation, 1)
    observation.forget()
    assert observation.num_pending == 0
    assert list(observation.read(drain=True)) == []
    step(observation, 1)
    assert [row.step for row in observation.read(drain=True)] == [1]


def test_columns_follow_the_phases_and_the_numbers_reach_their_series() -> None:
    observation = Observation((Late(), Nothing(), Early()), SITE, 0)
    assert observation.series == ("early/a", "early/b", "late/a", "late/b")
    assert observation.update_series == {"late/a", "late/b"}
    step(observation, 5)
    (row,) = observation.read()
    assert row.values.tolist() == [5, 5, 5, 7]
    assert ATTACHED["late"].prepared == 1
    assert ATTACHED["early"].prepared == 0


def test_two_signals_of_one_series_are_refused_and_let_go() -> None:
    with pytest.raises(ConfigError, match="two signals measure 'early/a'"):
        Observation((Early(), Late(), Early()), SITE, 0)
    assert ATTACHED["early"].detached and ATTACHED["late"].detached


def test_a_signal_that_cannot_attach_leaves_no_other_behind() -> None:
    with pytest.raises(ValueError, match="cannot attach"):
        Observation((Early(), Failing()), SITE, 0)
    assert ATTACHED["early"].detached


def test_state_goes_by_signal_and_unknown_state_is_left_alone() -> None:
    observation = Observation((Early(), Late()), SITE, 0)
    step(observation, 1)
    assert observation.state_dict() == {"early": {"prepared": 0}, "late": {"prepared": 1}}
    observation.load_state_dict({"late": {"prepared": 9}, "gone": {}})
    assert ATTACHED["late"].prepared == 9
    assert ATTACHED["early"].prepared == 0
