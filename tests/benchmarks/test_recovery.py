"""The recovery benchmark: it goes on after a kill, and it can say that something was lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import __main__ as command
from benchmarks.recovery import kill, power, trials
from benchmarks.recovery.account import Account, counting, irregular, losses
from benchmarks.recovery.figures import figures, kill_figures
from benchmarks.recovery.moments import Moment
from benchmarks.recovery.power import Simulated, power_trial
from benchmarks.recovery.processes import KILLED, Outcome
from benchmarks.recovery.results import Results
from benchmarks.recovery.training import train
from foreshock.core.errors import SnapshotError
from foreshock.data.stream import Stream
from foreshock.guard import Guard

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- results ----------------------------------------------------------------------------


def test_results_are_there_again(tmp_path: Path) -> None:
    store = Results(tmp_path / "new" / "trials.jsonl")
    store.add("kill/a/0", {"lost": [], "bitexact": True})
    store.add("kill/b/0", 1)
    store.add("kill/b/0", 2)
    again = Results(store.path)
    assert again.done("kill/a/0") and not again.done("kill/a/1")
    assert again.values("kill/b") == {"kill/b/0": 2}
    assert again.values() == store.values()
    assert len(again) == 2 and again.get("kill/b/0") == 2
    assert again.dates("kill/a") is not None and again.dates("other") is None


def test_a_line_that_a_kill_cut_short_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    store = Results(path)
    store.add("first", 1)
    store.add("second", [2, "ü"])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        torn = Results(path)
        ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
        kept = [
            name for name, end in zip(("first", "second"), ends, strict=True) if size >= end - 1
        ]
        assert list(torn.values()) == sorted(kept), size
        torn.add("third", 3)
        assert Results(path).values() == torn.values()
        assert Results(path).get("third") == 3


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, other = Results(tmp_path / "t.jsonl"), Results(tmp_path / "t.jsonl")
    one.add("a", 1)
    other.add("b", 2)
    one.add("c", 3)
    assert Results(one.path).values() == {"a": 1, "b": 2, "c": 3}


def test_what_json_cannot_say_is_refused(tmp_path: Path) -> None:
    store = Results(tmp_path / "t.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        store.add("a", float("nan"))
    assert not store.done("a") and not store.path.exists()


# ---- what is lost is seen ------------------------------------------------------------------


def sabotaged(account: Account) -> dict[str, tuple[Account, str]]:
    trained = {step: list(samples) for step, samples in account.trained.items()}
    last = max(trained)
    one = trained[last][0]
    without = trained | {last: trained[last][1:]}
    twice = trained | {last: [*trained[last], trained[last - 1][0]]}
    other = trained | {last: trained[last - 1], last - 1: trained[last]}
    ids, done = account.plan_ids
    return {
        "a sample less": (account._replace(trained=without), "1 samples neither trained"),
        "a sample twice": (account._replace(trained=twice), "1 samples trained twice"),
        "another order": (account._replace(trained=other), f"step {last - 1}: "),
        "a step less": (
            account._replace(trained={k: v for k, v in trained.items() if k != last}),
            f"steps [{last}] trained in one run only",
        ),
        "not at its end": (account._replace(ended=False), "did not come to its end"),
        "an incident less": (account._replace(incidents=account.incidents[:1]), "incidents differ"),
        "a plan twice": (account._replace(plan_ids=([*ids, ids[-1]], done)), "plans were recorded"),
        "a plan not done": (account._replace(plan_ids=(ids, done[1:])), "plans were carried out"),
        "set aside and trained": (
            account._replace(aside=sorted([*account.aside, one])),
            "1 samples trained and are set aside",
        ),
        "less set aside": (account._replace(aside=account.aside[1:]), "set aside: 1 samples are"),
    }


def test_a_step_counts_of_the_last_attempt_that_began_before_it() -> None:
    provenance = {1: {1: [0], 2: [1], 3: [2]}, 2: {2: [5]}, 4: {3: [7]}}
    first = counting([(1, 0), (2, 1)], provenance)
    assert first == {1: (1, [0]), 2: (2, [5])}  # step 3 was undone, and not trained again
    assert counting([(1, 0), (2, 1), (3, 2), (4, 2)], provenance) == first | {3: (4, [7])}


def test_every_loss_is_named(reference: Simulated) -> None:
    account = reference.account
    assert losses(account, account) == []
    assert len(account.incidents) == 2 and account.aside
    for name, (found, said) in sabotaged(account).items():
        assert any(said in one for one in losses(account, found)), name
    assert irregular(account) == []


def test_losses_of_power_lose_nothing(reference: Simulated, text: Path) -> None:
    found = power_trial("kill/power-1/0000", reference, text.read_bytes())
    assert found["kills"]
    assert found["lost"] == [] and found["bitexact"]


def test_a_restart_that_skips_a_batch_is_counted_as_lost(
    reference: Simulated, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[bool] = []

    def skipping(guard: Guard) -> None:
        if len(starts) == 2 and not starts[-1]:  # the first step after a restart
            stream = guard._feed.stream
            stream.load_state_dict({"position": stream.position + 8})
            starts[-1] = True

    def started(*args: Any, **options: Any) -> Any:
        starts.append(False)
        return train(*args, **options, before_step=skipping)

    monkeypatch.setattr(power, "train", started)
    found = power_trial("kill/power-1/0005", reference, text.read_bytes())
    assert any(starts)
    assert any("samples neither trained" in one for one in found["lost"])
    assert not found["bitexact"]
    counted = kill_figures({"kill/power-1/0005": found}, {})
    assert (counted["kill_trials"], counted["kill_lost"], counted["kill_bitexact"]) == (1, 1, 0)
    assert list(counted["kill_failures"]) == ["kill/power-1/0005"]


def test_a_start_that_fails_is_counted_as_lost(
    reference: Simulated, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(this: Stream, state: dict[str, Any]) -> None:
        raise SnapshotError("no")

    monkeypatch.setattr(Stream, "load_state_dict", refusing)
    found = power_trial("kill/power-1/0000", reference, text.read_bytes())
    assert (
        "start 1: SnapshotError: no snapshot could be" in found["lost"][0] and not found["bitexact"]
    )


# ---- kills of processes ------------------------------------------------------------------


def test_decisions_that_went_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    assert kill._decided(tmp_path) == []
    path.write_bytes(b"one\ntwo\nhal")
    before = kill._decided(tmp_path)
    assert before == [b"one", b"two"]
    path.write_bytes(b"one\ntwo\nthree\n")
    assert kill._forgotten(before, kill._decided(tmp_path)) == []
    path.write_bytes(b"one\nthree\n")
    assert kill._forgotten(before, kill._decided(tmp_path)) == [
        "of 2 decisions in the journal 1 were left after a restart"
    ]


def test_ranks_that_hang_or_die_of_something_else_are_told() -> None:
    one = Moment(0, "step", 3, "before", whole=False)
    gone = Outcome(KILLED, "", "", {}, False)
    stopped = Outcome(1, "", "RankError: rank 0 is gone", {}, False)
    assert kill._of_the_others([gone, stopped], one) == []
    odd = kill._of_the_others([gone, Outcome(1, "", "KeyError: 'x'", {}, False)], one)
    assert "KeyError" in odd[0]
    hung = kill._of_the_others([gone, Outcome(KILLED, "", "", {}, True)], one)
    assert "hung" in hung[0]
    assert kill._of_the_others([gone, gone], one._replace(whole=True)) == []


def test_a_verdict_sees_another_digest_and_another_run(reference: Simulated, text: Path) -> None:
    told = kill.Reference(1, "one", "d" * 32, reference.account, [], 1.0)
    nothing = Path("/nowhere")
    bad = Outcome(1, told.digest, "SnapshotError: none", {}, False)
    found = kill.verdict(told, [bad], nothing, ["before"])
    assert found == {"lost": ["before", "rank 0: SnapshotError: none"], "bitexact": False}


def test_moments_are_drawn_from_the_key_alone() -> None:
    counts = {"step": 80, "restore": 6, "meeting": 2}
    told = kill.Reference(1, "one", "", None, [counts], 1.0)
    drawn = [kill.draw(kill.rng_of("kill/x/1"), told, 0) for _ in range(2)]
    assert drawn[0] == drawn[1]
    rng = kill.rng_of("kill/x/2")
    many = [kill.draw(rng, told, at % 2) for at in range(200)]
    assert {one.place for one in many} == {"time", "step", "restore"}
    assert all(1 <= one.number <= {"time": 100, **counts}[one.place] for one in many)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "layout"), [(1, "one"), (2, "ddp")])
def test_kills_of_processes_lose_nothing(world: int, layout: Any, text: Path) -> None:
    told = kill.undisturbed(world, layout, text)
    assert told.error == ""
    assert all(told.counts[0][place] for place in ("step", "record", "snapshot", "restore", "disk"))
    found = kill.kill_trial(f"kill/{layout}-{world}/0000", told, text)
    assert found["kills"]
    assert found["lost"] == [] and found["bitexact"]


# ---- the whole ---------------------------------------------------------------------


def test_a_layout_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    store = Results(tmp_path / "t.jsonl")
    store.add("unavailable/fsdp2-2", "RuntimeError: not yet")
    store.add("unavailable/one-1", "")
    store.add("kill/one-1/0000", {"lost": [], "bitexact": True, "kills": [{"place": "step"}]})
    store.add("kill/one-1/0001", {"lost": [], "bitexact": True, "kills": []})
    found = figures(store)
    assert found["kill_by_ranks"]["fsdp2-2"] == "not available: RuntimeError: not yet"
    assert found["kill_trials"] == 1  # one that no kill struck is none
    assert found["kill_bitexact"] == 1 and found["kills"] == 1


def test_the_command_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trials, "QUICK_CORRUPT", {"plain": 3})
    path = tmp_path / "recovery.json"
    given = ["--quick", "--only", "corrupt", "--jobs", "1", "--json", str(path)]
    command.main(given)
    first = json.loads(capsys.readouterr().out)
    assert first == json.loads(path.read_text())
    assert (first["corrupt_trials"], first["corrupt_accepted"]) == (3, 0)
    kept = (tmp_path / "recovery" / "quick.jsonl").read_bytes()
    monkeypatch.setattr(command, "run_trials", lambda *_, **__: pytest.fail("made again"))
    command.main(given)
    assert (tmp_path / "recovery" / "quick.jsonl").read_bytes() == kept
    assert json.loads(path.read_text())["corrupt_trials"] == 3


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "kills"])
    assert "matrix" in capsys.readouterr().err
