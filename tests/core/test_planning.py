"""What a plan of a further rollback keeps of those before it."""

from foreshock.core.action import ActionCall, Plan
from foreshock.core.incident import PlanRecord
from foreshock.core.planning import still_holding


def scaled(first: int, **others) -> ActionCall:
    return ActionCall(name="scale_lr", arguments={"factor": 0.5, "first_step": first, **others})


def planned(number: int, target: int | None, *calls: ActionCall) -> PlanRecord:
    plan = Plan(rung="r", why="", actions=calls, target_step=target)
    return PlanRecord(id=number, attempt=number, step=100 + number, position=0, plan=plan)


def rates(calls, steps) -> list[float]:
    """The factor at each step, by hand."""
    found = []
    for step in steps:
        factor = 1.0
        for call in calls:
            first, hold = call.arguments["first_step"], call.arguments.get("hold_steps")
            if step >= first and (hold is None or step < first + hold):
                factor *= call.arguments["factor"]
        found.append(factor)
    return found


def test_a_rate_that_was_lowered_stays_low_where_the_run_goes_further_back() -> None:
    calls = [scaled(91, hold_steps=1000, ramp_steps=200)]
    tried = [planned(1, 90, *calls)]
    added = still_holding(tried, 60)
    assert [one.arguments for one in added] == [
        {"factor": 0.5, "first_step": 61, "hold_steps": 30, "ramp_steps": 0}
    ]
    calls += added
    tried.append(planned(2, 60, ActionCall(name="rollback", arguments={}), *added))
    # And further: nothing is lowered twice.
    calls += still_holding(tried, 40)
    assert rates(calls, range(35, 100)) == [1.0] * 6 + [0.5] * 59


def test_two_orders_hold_both() -> None:
    calls = [scaled(91)]
    tried = [planned(1, 90, *calls)]
    second = [scaled(81), *still_holding(tried, 80)]
    calls += second
    tried.append(planned(2, 80, *second))
    calls += still_holding(tried, 50)
    assert rates(calls, [50, 51, 80, 81, 90, 91, 500]) == [1.0] + [0.25] * 6


def test_nothing_is_added_where_nothing_is_missing() -> None:
    tried = [planned(1, 50, scaled(51)), planned(2, None, scaled(120))]
    assert still_holding(tried[:1], 50) == still_holding(tried[:1], 70) == []
    assert [one.arguments["first_step"] for one in still_holding(tried, 50)] == [51]
    other = planned(1, 50, ActionCall(name="lower_beta2", arguments={"first_step": 51}))
    assert still_holding([other], 30)[0].arguments == {"first_step": 31, "hold_steps": 20}
