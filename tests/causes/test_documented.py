"""docs/causes.md says what the causes say, and its example computes."""

import doctest

from foreshock.catalog import members
from foreshock.core.preferences import PREFERENCES
from foreshock.core.symptom import AGREEMENT, MOST
from tests.causes.documented import FIRST, LAST, PAGE, table
from tests.causes.test_tables import LASTING, NO_EXPERIMENT_SEPARATES

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_table_is_that_of_the_causes() -> None:
    written = TEXT.partition(FIRST)[2].partition(LAST)[0]
    assert written == table(), "run `python -m tests.causes.documented`"
    assert written.count("\n") == len(members("causes")) + 2


def test_the_example_computes() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert attempted >= 4
    assert failed == 0


def test_its_constants_are_those_of_the_code() -> None:
    assert f"AGREEMENT is {AGREEMENT:g}" in TEXT
    assert f"MOST is {MOST:g}" in TEXT
    assert len(members("causes")) == 31  # "thirty-one"
    assert len(NO_EXPERIMENT_SEPARATES) == 3
    assert len(LASTING) == 10  # "ten causes"


def test_the_policys_page_names_every_cause_that_has_preferences() -> None:
    policy = (PAGE.parent / "policy.md").read_text(encoding="utf-8")
    for cause in PREFERENCES:
        assert f"`{cause}`" in policy, cause
