"""Which measured states a recovery is compared with: what holds for every history."""

from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.measured import MeasuredState, references

PLANS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60), st.booleans()), min_size=1, max_size=8
)


def measured(plans) -> list[MeasuredState]:
    """What plans leave that go back to some step; where that is gone, to an older one first."""
    found = []
    for plan, (step, older_by, gone) in enumerate(plans, start=1):
        begun = max(0, step - older_by) if gone else step
        found.append(state(plan, begun))
        if begun < step:
            found.append(state(plan, step, begun))
    return found


def state(plan: int, step: int, trained_from: int | None = None) -> MeasuredState:
    name = f"{plan}:{step}" + ("" if trained_from is None else "+")
    return MeasuredState(
        plan=plan, snapshot=name, step=step, values={}, near_steps=(), near=(),
        trained_from=trained_from,
    )  # fmt: skip


def test_nothing_measured() -> None:
    assert references([]) is None


@given(PLANS)
def test_one_of_the_two_is_from_before_the_first_trouble(plans) -> None:
    known = measured(plans)
    found = references(known)
    assert found is not None
    # Told from the history, state by state: was it trained after a rollback to before it?
    backs = [known[0].step]
    untouched = {known[0].snapshot}
    for one in known[1:]:
        if one.trained_from is None and one.step <= min(backs[:1]):
            untouched.add(one.snapshot)
    assert found.nearest.step == known[-1].step
    if found.proved is None:
        assert found.nearest.snapshot in untouched
    else:
        assert found.nearest.snapshot not in untouched
        assert found.proved.snapshot in untouched
        assert found.proved.step < found.nearest.step
        between = [one for one in known if found.proved.step < one.step < found.nearest.step]
        assert not [one for one in between if one.snapshot in untouched]
