"""`foreshock capabilities`, as a person and as a program read it."""

import json

import pytest

from foreshock import capability_tables
from foreshock.capability_tables import ABILITIES
from foreshock.capability_tables import capability_tables as read
from foreshock.cli.main import app


@pytest.fixture
def run_it(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            app(list(arguments))
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def test_it_fits_into_80_columns_and_leaves_nothing_out(run_it):
    code, out, err = run_it("capabilities")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    told = " ".join(out.split())
    for table in read():
        assert f"{table.name} {table.title}" in told
        for what, why in table.refuses.items():
            assert f"refuses {what}: {why}" in told
        for ability, (state, reason) in table.can.items():
            assert f"{ability}: {reason}" in told if reason else state in ("yes", "untested")


def test_json_is_the_same_for_programs(run_it):
    code, out, _ = run_it("capabilities", "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["abilities"]) == list(ABILITIES)
    plain = found["loops"][0]
    assert plain["name"] == "plain" and plain["can"]["skip"] == {"state": "yes", "reason": ""}
    assert [one["name"] for one in found["loops"]] == [table.name for table in read()]


def test_one_loop_and_none_of_that_name(run_it):
    code, out, _ = run_it("capabilities", "hf")
    assert code == 0 and out.startswith("hf ") and "Fabric" not in out
    code, out, err = run_it("capabilities", "keras")
    assert (code, out) == (2, "")
    assert "there is no integration 'keras'; there are plain," in err


def test_what_is_not_installed_is_said_with_what_to_do(run_it, monkeypatch):
    monkeypatch.setattr(capability_tables, "_installed", lambda package: None)
    _, out, _ = run_it("capabilities", "lightning")
    assert "without lightning: pip install 'foreshock[lightning]'" in " ".join(out.split())
    loops = json.loads(run_it("capabilities", "lightning", "--json")[1])["loops"]
    assert [one["installed"] for one in loops] == [False]
