"""`foreshock quarantine`: list, show, release, reflow, on runs that stand still and that run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foreshock.cli.main import app, cli
from foreshock.data.account import Account
from foreshock.data.ledger import LedgerEntry
from foreshock.data.requests import Requests
from foreshock.data.stream import Stream
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from tests.cli.programs import write
from tests.data.recovered import closed, finding, planned

STREAM = Stream({"web": list(range(300)), "code": list(range(100))}, batch_size=8, seed=4)
WINDOW = (40, 56)


def identity(stream: Stream = STREAM) -> dict[str, Any]:
    return {"program": "p", "fingerprint": "f", "stream": stream.describe()}


def quarantined(journal: Journal, entry: LedgerEntry, kind: str = "quarantined", **more) -> None:
    journal.write(kind, attempt=1, step=8, entry=entry.to_json(), **more)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Ten steps of eight, then a window and two samples set aside."""
    disk = RealDisk()
    with Journal.create(disk, tmp_path / "run", identity(), lambda: 0.0) as journal:
        journal.write("attempt_started", attempt=1, step=0)
        journal.open_provenance(1)
        for step in range(1, 11):
            journal.append_provenance(step, list(range(8 * step - 8, 8 * step)))
        entry = LedgerEntry(entry_id="plan3/1", reason="data suspected at step 6", window=WINDOW)
        quarantined(journal, entry)
        for index in (7, 9):
            entry = LedgerEntry(
                entry_id=f"rule/length/code/{index}",
                reason=f"length {index} < 16",
                ids=(("code", index),),
                rule="length",
                since=70,
            )
            quarantined(journal, entry, "rejected", position=70)
    disk.close()
    return tmp_path / "run"


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["quarantine", *(str(one) for one in arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        app(["quarantine", *(str(one) for one in arguments)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def entries(run_dir: Path) -> list[dict[str, Any]]:
    return json.loads(invoke("list", run_dir, "--json"))["entries"]


def records(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    return [one for one in Journal.read(RealDisk(), run_dir).records if one["kind"] in kinds]


def account(run_dir: Path) -> Account:
    return Account(STREAM.describe(), Journal.read(RealDisk(), run_dir).records)


def test_a_list_fits_eighty_columns_and_says_why(run_dir: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = invoke("list", run_dir)
    assert max(map(len, said.splitlines())) <= 80
    flat = re.sub(r"[\s│]+", " ", said)
    for piece in ("plan3/1", "16", "40-55", "held", "rule/length", "18 samples are held"):
        assert piece in flat
    assert "length 7 < 16" in flat and "1 more" in flat


def test_the_list_as_json_has_every_entry(run_dir: Path) -> None:
    told = json.loads(invoke("list", run_dir, "--json"))["entries"]
    assert [one["entry"] for one in told] == [
        "plan3/1",
        "rule/length/code/7",
        "rule/length/code/9",
    ]
    assert told[0]["window"] == [40, 56]
    assert told[0]["num_held"] == told[0]["num_samples"] == 16
    assert told[1]["rule"] == "length"
    assert {one["state"] for one in told} == {"held"}


def test_the_incident_of_a_plan_is_named(run_dir: Path, tmp_path: Path) -> None:
    (found,) = Account(
        STREAM.describe(),
        [{"kind": "plan", "plan_id": 3, "incident": 5}, *records(run_dir, "quarantined")],
    ).entries()
    assert found.incident == 5


def test_show_names_each_sample_with_its_place(run_dir: Path) -> None:
    told = json.loads(invoke("show", run_dir, "plan3/1", "--json"))
    expected = [STREAM.order.locate(position) for position in range(*WINDOW)]
    assert [(one["source"], one["index"]) for one in told] == [each[1:] for each in expected]
    assert [one["position"] for one in told] == list(range(*WINDOW))
    both = json.loads(invoke("show", run_dir, "rule/length", "--json"))
    assert [(one["index"], one["position"]) for one in both] == [(7, 70), (9, 70)]
    assert "code" in invoke("show", run_dir, "rule/length")


def test_release_in_a_run_that_stands_still_is_journalled(run_dir: Path) -> None:
    source, index = STREAM.order.locate(41)[1:]
    said = invoke("release", run_dir, "plan3/1", "--sample", f"{source}:{index}")
    assert "position 80" in said
    (record,) = records(run_dir, "released")
    assert (record["position"], record["ids"]) == (80, [[source, index]])
    assert (record["attempt"], record["step"]) == (1, 10)
    assert len(account(run_dir).ledger.held_by("plan3/1")) == 15
    invoke("release", run_dir, "--all")
    assert account(run_dir).ledger.num_samples == 0
    assert {one["state"] for one in entries(run_dir)} == {"released"}
    assert not (run_dir / "requests").exists()


def test_reflow_in_a_run_that_stands_still_begins_behind_what_has_trained(run_dir: Path) -> None:
    invoke("reflow", run_dir, "plan3/1", "--every", 3)
    (record,) = records(run_dir, "reflow_started")
    assert (record["start"], record["every_samples"], record["watch_steps"]) == (81, 24, 16)
    stream = Stream({"web": list(range(300)), "code": list(range(100))}, batch_size=8, seed=4)
    for one in Journal.read(RealDisk(), run_dir).records:
        stream.apply(one)
    stream.load_state_dict({"position": 80})
    batches = []
    while stream.position < 390:
        batches.append(stream.next_batch())
    came = [one.key for batch in batches for one in batch.returned]
    assert came == list(stream.ledger.samples("plan3/1"))[: len(came)]
    assert len(came) == len(range(81, stream.position, 24)) == 14
    (told,) = (o for o in entries(run_dir) if o["num_waiting"])
    assert told["state"] == "held; 16 coming back"
    invoke("reflow", run_dir, "rule", "--every", 1)
    starts = [one["start"] for one in records(run_dir, "reflow_started")]
    assert starts == [81, 81, 89]


def test_a_run_that_is_going_on_is_left_a_request(run_dir: Path) -> None:
    before = (run_dir / "decisions.jsonl").read_bytes()
    lock = RealDisk().lock(run_dir / "lock")
    try:
        said = invoke("release", run_dir, "plan3/1")
        told = json.loads(invoke("reflow", run_dir, "rule/length/code/7", "--every", 2, "--json"))
    finally:
        lock.close()
    assert "The run is going on" in said
    assert told["taken"] == "left"
    assert (run_dir / "decisions.jsonl").read_bytes() == before
    requests = Requests(RealDisk(), run_dir)
    found, bad = requests.pending()
    assert bad == []
    assert sorted(one.command for one in found) == ["reflow", "release"]
    assert {one.every_samples for one in found} == {0, 16}


def incident_in(run_dir: Path, *, minimized: bool) -> tuple[list[Any], list[Any]]:
    """An incident with two windows, one over the other; what is needed of it, and the rest."""
    keys = list(STREAM.ledger._expand(LedgerEntry(entry_id="w", reason="r", window=(56, 72))))
    needed, cleared = keys[:4], keys[4:]
    told = [*planned(1, 1, (56, 64)), *planned(1, 2, (56, 72)), *closed(1)]
    with Journal.open(RealDisk(), run_dir, None, lambda: 0.0) as journal:
        for kind, fields in told:
            journal.write(kind, attempt=1, step=9, **fields)
        if minimized:
            found = finding(1, {"plan2/0": tuple(cleared)}, needed=tuple(needed), num_plans=2)
            journal.write(
                "released", attempt=1, step=9, entry_id="plan1/0", position=80,
                ids=[list(key) for key in cleared if key in keys[:8]],
            )  # fmt: skip
            journal.write(
                "released", attempt=1, step=9, entry_id="plan2/0", position=80,
                ids=[list(key) for key in cleared],
            )  # fmt: skip
            journal.write("minimized", attempt=1, step=9, **found.to_json())
    return needed, cleared


def test_what_an_incident_has_cost_is_told_in_samples_then_in_tokens(run_dir: Path) -> None:
    incident_in(run_dir, minimized=False)
    told = json.loads(invoke("list", run_dir, "--json"))
    (cost,) = told["incidents"]
    assert (cost["num_set_aside"], cost["num_held"], cost["minimized"]) == (16, 16, False)
    undone = 2 * (9 - 4)  # planned in step 9, back to step 4
    assert cost["unit"] == "samples"
    assert cost["tokens"]["recomputed"] == undone * 8
    assert cost["tokens"]["lost"] == undone * 8 + 16
    assert cost["tokens"]["palm"] == [300 * 8, 600 * 8]
    assert cost["tokens"]["saved"] == [300 * 8 - undone * 8 - 16, 600 * 8 - undone * 8 - 16]
    assert told["in_all"]["samples"] == {
        "incidents": 1,
        **{name: cost["tokens"][name] for name in ("lost", "palm", "saved")},
    }
    assert "not minimized yet" in invoke("list", run_dir)


def test_after_a_search_the_tokens_that_are_saved_are_told(run_dir: Path) -> None:
    needed, cleared = incident_in(run_dir, minimized=True)
    told = json.loads(invoke("list", run_dir, "--json"))
    (cost,) = told["incidents"]
    assert (cost["num_held"], cost["num_given_back"]) == (len(needed), len(cleared))
    assert cost["unit"] == "tokens"
    step = 4 * 12  # what the search saw: four samples of twelve tokens
    lost = 10 * step + 12 * len(needed)
    assert (cost["tokens"]["lost"], cost["tokens"]["palm"]) == (lost, [300 * step, 600 * step])
    assert told["in_all"] == {
        "tokens": {
            "incidents": 1,
            "lost": lost,
            "palm": [300 * step, 600 * step],
            "saved": [300 * step - lost, 600 * step - lost],
        }
    }
    assert "not minimized" not in invoke("list", run_dir)


def test_what_a_search_found_needed_comes_back_one_by_one(run_dir: Path, capsys) -> None:
    """Both entries hold it: it comes once, by one of them, and the other lets it go."""
    needed, cleared = incident_in(run_dir, minimized=True)
    strange = f"{cleared[0][0]}:{cleared[0][1]}"
    said = refused(
        capsys, "reflow", run_dir, "--incident", "1", "--sample", strange, "--every", "2"
    )
    assert "do not stay" in said
    invoke("reflow", run_dir, "--incident", "1", "--every", "2")
    (flow,) = records(run_dir, "reflow_started")
    assert {tuple(key) for key in flow["ids"]} == set(needed)
    assert (flow["every_samples"], flow["watch_steps"]) == (16, 16)
    ledger = account(run_dir).ledger
    holders = [[e for e in ("plan1/0", "plan2/0") if key in ledger.held_by(e)] for key in needed]
    assert holders == [["plan1/0"]] * len(needed)
    shown = json.loads(invoke("show", run_dir, "incident/1", "--json"))
    assert sum(one["state"] == "coming back" for one in shown) == len(needed)


def test_all_that_an_incident_set_aside_is_released_at_once(run_dir: Path, capsys) -> None:
    incident_in(run_dir, minimized=False)
    invoke("release", run_dir, "incident/1")
    assert {one["entry_id"] for one in records(run_dir, "released")} == {"plan1/0", "plan2/0"}
    assert "no entry 'incident/7'" in refused(capsys, "release", run_dir, "incident/7")


@pytest.mark.parametrize("name", ["needed", "tokens", "given_back", "num_plans"])
def test_a_damaged_finding_is_one_clear_error_or_says_nothing(
    run_dir: Path, capsys, name: str
) -> None:
    incident_in(run_dir, minimized=False)
    with Journal.open(RealDisk(), run_dir, None, lambda: 0.0) as journal:
        journal.write("minimized", attempt=1, step=9, **{**finding(1, {}).to_json(), name: "x"})
    json.loads(invoke("list", run_dir, "--json"))
    said = refused(capsys, "reflow", run_dir, "--incident", "1", "--every", "2")
    assert "is damaged" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "NOWHERE"], "not a Foreshock run directory"),
        (["show", "RUN", "plan9/9"], "no entry 'plan9/9'"),
        (["show", "RUN", "plan3/1", "--text", "2"], "needs --program"),
        (["show", "RUN", "plan3/1", "--text", "2", "--program", "no.py:program"], "no file"),
        (["release", "RUN"], "give --all"),
        (["release", "RUN", "plan3/1", "--all"], "give --all"),
        (["release", "RUN", "--all", "--sample", "code:7"], "without --all"),
        (["release", "RUN", "plan3/1", "--sample", "code"], "SOURCE:INDEX"),
        (["release", "RUN", "plan3/1", "--sample", "code:-1"], "SOURCE:INDEX"),
        (["release", "RUN", "plan3/1", "--sample", "code:99999999999999999"], "SOURCE:INDEX"),
        (["release", "RUN", "plan3/1", "--sample", "code:7"], "does not name"),
        (["release", "RUN", "x"], "no entry 'x'"),
        (["reflow", "RUN", "x", "--every", "3"], "no entry 'x'"),
        (["reflow", "RUN", "--every", "3"], "give --incident"),
        (["reflow", "RUN", "x", "--incident", "1", "--every", "3"], "give --incident"),
        (["reflow", "RUN", "--incident", "1", "--every", "3"], "was not minimized"),
        (["reflow", "RUN", "plan3/1", "--sample", "code:7", "--every", "3"], "does not name"),
    ],
)
def test_mistakes_are_one_sentence(
    run_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    before = (run_dir / "decisions.jsonl").read_bytes()
    places = {"RUN": str(run_dir), "NOWHERE": str(run_dir.parent)}
    found = refused(capsys, *(places.get(one, one) for one in arguments))
    assert said in found
    assert found.count("\n") == 1
    assert (run_dir / "decisions.jsonl").read_bytes() == before


def test_a_second_time_there_is_nothing_to_do(run_dir: Path, capsys) -> None:
    invoke("release", run_dir, "plan3/1")
    assert "nothing of it is held" in refused(capsys, "release", run_dir, "plan3/1")
    assert "nothing of it is left" in refused(capsys, "reflow", run_dir, "plan3/1", "--every", 2)


def test_options_are_checked(run_dir: Path) -> None:
    for arguments in (["reflow", run_dir, "plan3/1"], ["reflow", run_dir, "x", "--every", "0"]):
        done = CliRunner().invoke(cli, ["quarantine", *map(str, arguments)])
        assert done.exit_code == 2
        assert "Traceback" not in done.output


def test_a_run_that_has_not_trained_or_owns_its_loader(tmp_path: Path, capsys) -> None:
    with Journal.create(RealDisk(), tmp_path / "new", identity(), lambda: 0.0) as journal:
        quarantined(journal, LedgerEntry(entry_id="e", reason="r", window=(1, 3)))
    assert "nothing has trained yet" in refused(
        capsys, "reflow", tmp_path / "new", "e", "--every", 1
    )
    own = {**identity(), "stream": None}
    with Journal.create(RealDisk(), tmp_path / "own", own, lambda: 0.0):
        pass
    assert "keeps no state" in refused(capsys, "list", tmp_path / "own")
    with Journal.create(RealDisk(), tmp_path / "empty", identity(), lambda: 0.0):
        pass
    assert "nothing was set aside" in invoke("list", tmp_path / "empty")


NASTY = "\x1b[31mred\x07 \u202egnp.exe"


def test_what_a_journal_says_does_not_drive_the_terminal(tmp_path: Path, capsys) -> None:
    with Journal.create(RealDisk(), tmp_path / "run", identity(), lambda: 0.0) as journal:
        entry = LedgerEntry(entry_id=f"e{NASTY}", reason=f"[bold]{NASTY}", window=(1, 3))
        quarantined(journal, entry)
    for said in (
        invoke("list", tmp_path / "run"),
        invoke("show", tmp_path / "run", f"e{NASTY}"),
        refused(capsys, "release", tmp_path / "run", NASTY),
    ):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", said) if "foreshock:" in said else said
        assert not set("\x1b\x07\u202e") & set(plain)


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "released", "entry_id": "x", "ids": None, "position": 0},
        {"kind": "released", "entry_id": "plan3/1", "ids": [["a"]], "position": 0},
        {"kind": "reflow_started", "entry_id": "plan3/1", "start": 0, "every_samples": 0},
        {"kind": "reflowed", "entry_id": "plan3/1", "key": {}, "slot": "", "outcome": 3},
        {"kind": "data_reordered", "position": 10**9, "seed": 1},
        {"kind": "quarantined", "entry": []},
        {"kind": "rejected", "entry": {"entry_id": ["a"]}},
    ],
)
def test_a_damaged_journal_is_one_clear_error(run_dir: Path, capsys, damage) -> None:
    with Journal.open(RealDisk(), run_dir, None, lambda: 0.0) as journal:
        fields = dict(damage)
        journal.write(fields.pop("kind"), attempt=1, step=10, **fields)
    for command in (["list"], ["show", "plan3/1"], ["release", "plan3/1"]):
        said = refused(capsys, command[0], run_dir, *command[1:])
        assert said.count("\n") == 1


TEXTS = """
class Texts:
    def __len__(self):
        return {size}
    def __getitem__(self, index):
        text = f"text {{index}} " + {nasty!r} + "y" * (3000 * (index % 2))
        return {{"x": Data()[index], "text": text}}

def collate(samples):
    return torch.stack([one["x"] for one in samples])
"""


def test_the_texts_are_those_of_the_program_and_harmless(tmp_path: Path, capsys) -> None:
    stream = (
        'foreshock.Stream({"data": Texts()}, batch_size=4, seed=settings.seed, collate=collate)'
    )
    program = write(tmp_path, size=64, stream=stream)
    texts = TEXTS.format(size=64, nasty=NASTY)
    program.write_text(program.read_text().replace("def loss(", f"{texts}\ndef loss("))
    run = tmp_path / "run"
    done = CliRunner().invoke(
        cli,
        ["run", f"{program}:program", "--run-dir", str(run), "--max-steps", "3", "--seed", "7"],
    )
    assert done.exit_code == 0, done.output
    with Journal.open(RealDisk(), run, None, lambda: 0.0) as journal:
        quarantined(journal, LedgerEntry(entry_id="e", reason="r", window=(4, 8)))
    arguments = ["show", run, "e", "--text", "2", "--program", f"{program}:program"]
    said = invoke(*arguments)
    assert not set("\x1b\x07\u202e") & set(said)
    told = json.loads(invoke(*arguments, "--json"))
    assert [("text" in one) for one in told] == [True, True, False, False]
    for one in told[:2]:
        assert one["text"].startswith(f"text {one['index']} ")
        assert f"text {one['index']} " in said
    assert len(said) < 6000
    program.write_text(program.read_text().replace("return 64", "return 65"))
    assert "is not that of the run" in refused(capsys, *arguments)


def test_reading_leaves_no_trace(run_dir: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*"))
    for command in (["list"], ["show", "plan3/1"], ["list", "--json"]):
        invoke(command[0], run_dir, *command[1:])
    assert sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*")) == before
