"""A run is told as far as it goes: whole, cut off, strange, or empty."""

import json
import math
from pathlib import Path

import pytest

from foreshock.core.errors import JournalError, RunDirError
from foreshock.report.summary import summarise
from foreshock.report.words import how_it_ended, lead, verdict
from tests.report.runs import Script, diagnosis, one_rollback, summary, view


def test_one_rollback_is_told_whole(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    run = summary(tmp_path / "run")
    assert run.verdict == (
        "Finished at step 200; one incident (optimizer state corrupt, step 120) was undone, and "
        "the model passed its probes."
    )
    assert (run.state, run.step, run.num_steps_trained, run.num_steps_undone) == (
        *("finished", 200, 222, 22),
    )
    assert [(one.attempt, one.began_by, one.from_step) for one in run.attempts] == [
        *((1, "start", 0), (2, "rollback", 100)),
    ]
    assert run.notes == ()
    assert run.num_quarantined == 352
    (incident,) = run.incidents
    assert incident.lead == "update_ratio/global moved first, 1 step before the loss"
    assert (incident.onset_step, incident.alarm_step, incident.loss_moved_step) == (120, 120, 121)
    assert (incident.back_to, incident.closed_step, incident.num_set_aside) == (100, 131, 352)
    assert incident.decided == "rollback to step 100, 352 samples set aside"
    assert incident.verifications[0].probes[0].tolerance == 0.1
    assert [one.cause for one in incident.alternatives] == ["data_batch"]
    assert [(event.attempt, event.step, event.title) for event in incident.events] == [
        (1, 120, "Onset, first alarm"),
        (1, 121, "Loss moved"),
        (1, 122, "Plan 1: rollback"),
        (2, 100, "Rolled back"),
        (2, 131, "Verified, recovered"),
    ]
    assert incident.plans[0].finished
    assert incident.plans[0].results[0] == "352 samples set aside"


def test_json_is_strict_and_whole(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(130)
    run.plan(diagnosis(value=math.nan), back_to=100)
    run.verify(after=math.inf, passed=False)
    run.close()
    text = json.dumps(summary(tmp_path / "run").to_json(), allow_nan=False)
    told = json.loads(text)
    (incident,) = told["incidents"]
    assert incident["verifications"][0]["probes"][0]["after"] == "Infinity"
    fact = incident["diagnosis"]["candidates"][0]["evidence"][0]
    assert fact["readings"][0]["value"] == "NaN"
    assert incident["outcome"] == "open"


def test_a_run_without_a_record_is_told(tmp_path: Path) -> None:
    Script(tmp_path / "run").close()
    run = summary(tmp_path / "run")
    assert run.verdict == "Running or cut off at step 0; nothing has gone wrong so far."
    assert (run.attempts, run.incidents, run.started) == ((), (), None)
    json.dumps(run.to_json(), allow_nan=False)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"no run\.json"):
        summary(tmp_path)


def test_every_torn_end_is_told(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    path = tmp_path / "run" / "decisions.jsonl"
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        run = summary(tmp_path / "run")
        torn = size > 0 and whole[size - 1 : size] != b"\n"
        assert any("no whole record" in note for note in run.notes) == torn
        assert not [note for note in run.notes if "passed over" in note]
        json.dumps(run.to_json(), allow_nan=False)


def test_torn_readings_are_told(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    path = tmp_path / "run" / "readings" / "attempt-00002" / "000000001.bin"
    path.write_bytes(path.read_bytes()[:-5])
    assert any("no whole row" in note for note in summary(tmp_path / "run").notes)
    path.write_bytes(b"nonsense")
    run = summary(tmp_path / "run")
    assert any("attempt 2 cannot be read" in note for note in run.notes)
    assert run.incidents[0].outcome == "recovered"


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    path = tmp_path / "run" / "decisions.jsonl"
    text = bytearray(path.read_bytes())
    text[20] ^= 1
    path.write_bytes(bytes(text))
    with pytest.raises(JournalError, match="line 1"):
        summary(tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("plan", {}),
        ("plan", {"diagnosis": 3, "alarms": []}),
        ("action_done", {"result": "x"}),
        ("verification", {"verification": {}}),
        ("incident_closed", {"outcome": "vanished"}),
        ("alarm", {"alarm": {"step": "x", "series": []}}),
        ("quarantined", {"key": "plan1/0", "entry": {"window": [1, "x"]}}),
        ("rejected", {"position": [], "entry": {"rule": "length"}}),
        ("snapshot", {"snapshot": {"id": 1}}),
        ("skip", {}),
        ("attempt_started", {"step": 1e300}),
        ("paused", {"key": "plan1/0", "timeout_secs": "x"}),
        ("pause_lifted", {"key": "plan1/0", "waited_secs": 1.0}),
        ("advice", {"plan": {}, "diagnosis": {"candidates": []}}),
        ("strengthen_data", {"incident": 7, "capabilities": [], "data": ""}),
        ("minimized", {"incident": 1, "given_back": 3}),
        ("disk_low", {"free_bytes": "x", "needed_bytes": 3}),
        ("notice_failed", {}),
    ],
)
def test_a_strange_record_is_a_note(tmp_path: Path, kind: str, fields: dict[str, object]) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(5)
    run.write(kind, **fields)
    run.train(9)
    run.finish()
    told = summary(tmp_path / "run")
    assert len(told.notes) == 1
    assert kind in told.notes[0]
    assert "line 2" in told.notes[0]
    assert told.state == "finished"


def test_an_incident_that_cannot_be_told_leaves_the_others(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(130)
    fields = diagnosis().to_json()
    fields["candidates"][0]["evidence"][0]["weight"] = "a lot"
    plan = {"rung": "skip", "why": "x", "actions": [], "target_step": None}
    extra = {"incident": 1, "plan_id": 1, "position": 0, "alarms": [], "last_alarm_step": 120}
    run.write("plan", plan=plan, diagnosis=fields, **extra)
    run.close_incident()
    run.num_plans = 1
    run.plan(diagnosis(), incident=2, rung="skip")
    run.close()
    told = summary(tmp_path / "run")
    assert [incident.number for incident in told.incidents] == [2]
    assert any("incident 1 cannot be told" in note for note in told.notes)


def test_alarms_that_led_to_nothing_are_counted_quietly(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(300)
    run.alarm("loss/global", 50, 9.0)
    run.alarm("loss/global", 52, 9.0)
    run.write("episode_probed", onset_step=50, harmed=False, probes=[])
    run.alarm("grad_norm/global", 90, 9.0)
    run.alarm("grad_norm/global", 295, 9.0)
    run.close()
    told = summary(tmp_path / "run")
    assert [(one.first_step, one.num_alarms, one.probed) for one in told.healed] == [
        *((50, 2, True), (90, 1, False)),
    ]
    assert told.watched is not None
    assert told.watched.first_step == 295
    assert told.incidents == ()


def test_alarms_of_an_incident_are_not_counted_twice(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    run = summary(tmp_path / "run")
    assert run.healed == ()
    assert run.watched is None
    assert [one.series for one in run.incidents[0].alarms] == ["update_ratio/global"]


def test_harm_found_by_a_probe_opens_the_incident(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(125)
    run.alarm("update_ratio/global", 120, 0.02)
    probe = {"probe": "held_out_loss", "before": 2.0, "after": 3.0, "difference": 1.0}
    probes = [{**probe, "tolerance": 0.1, "passed": False}]
    run.write("episode_probed", onset_step=120, harmed=True, probes=probes)
    run.plan(diagnosis(loss_moved=None), back_to=100)
    run.close()
    (incident,) = summary(tmp_path / "run").incidents
    assert incident.doubt is not None
    assert incident.doubt.probes[0].after == 3.0
    assert "Probed, harm found" in [event.title for event in incident.events][1]
    assert not incident.plans[0].finished


def test_halted_and_resumed(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(60)
    run.plan(diagnosis(55), rung="halt", why="the budget is spent")
    run.write("halted", note="Halted at step 60: the budget is spent.")
    run.done("halt", "halted")
    run.close_incident("halted")
    run.plan_done()
    run.write("run_halted")
    told = summary(tmp_path / "run")
    assert told.state == "halted"
    assert told.handover.startswith("Halted at step 60")
    assert told.incidents[0].outcome == "halted"
    run.start(50)
    run.train(80)
    run.close()
    told = summary(tmp_path / "run")
    assert (told.state, told.step) == ("open", 80)
    assert told.attempts[1].began_by == "resume"
    assert told.num_steps_undone == 10


def test_stopped_by_the_system_and_resumed(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(60)
    run.write("stopping", signal="SIGTERM", secs_ago=0.5, write_secs=0.1, fits=True)
    run.write("run_stopped", signal="SIGTERM", snapshot="00000060-a00001")
    told = summary(tmp_path / "run")
    assert told.state == "stopped"
    expected = (
        "Stopped by the system at step 60, to go on from there; nothing has gone wrong so far."
    )
    assert told.verdict == expected
    run.start(60)
    run.train(80)
    run.close()
    assert summary(tmp_path / "run").state == "open"


def test_samples_are_counted_once(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(130)
    run.plan(diagnosis(), back_to=100, window=(100, 200))
    run.quarantine(100, 200)
    run.write("quarantined", key="plan1/1", entry={"window": [150, 300], "reason": "x"})
    for position, rule in ((160, "length"), (500, "repetition"), (500, "repetition")):
        run.write("rejected", position=position, entry={"rule": rule})
    run.write("quarantined", key="plan9/0", entry={"window": [0, 1 << 50], "reason": "huge"})
    run.close()
    told = summary(tmp_path / "run")
    assert told.incidents[0].num_set_aside == 200
    assert told.rejected == {"length": 1, "repetition": 1}
    assert told.num_quarantined == 1 << 50


def test_words_of_hostile_strings_are_harmless(tmp_path: Path) -> None:
    run = Script(tmp_path / "run", program="\x1b[31m\u202eevil\ud800")
    run.start()
    run.close()
    assert summary(tmp_path / "run").program == "\ufffd[31m\ufffdevil\ufffd"


def test_the_lead_never_claims_more_than_was_seen() -> None:
    assert "in the same step" in lead("grad_norm/global", 5, 5)
    assert "in the same step" in lead("grad_norm/global", 6, 5)
    assert lead("loss/global", 5, 5) == "the loss itself moved first"
    assert how_it_ended("recovered", went_back=True, num_probes=0).endswith("not probed")
    three = [("recovered", "a", 1, ""), ("recovered", "b", 2, ""), ("open", "c", 3, "")]
    assert verdict("finished", 9, three[:2]) == "Finished at step 9; 2 incidents, all recovered."
    assert verdict("open", 9, three).endswith("3 incidents: 2 recovered, 1 open.")


def test_the_view_is_left_as_it_was(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    seen = view(tmp_path / "run")
    before = json.dumps(seen.records)
    summarise(seen)
    assert json.dumps(seen.records) == before


def aftermath(run: Script) -> None:
    """An incident that was paused, looked at again, and narrowed down; a disk that ran full."""
    run.start()
    run.train(130)
    run.plan(diagnosis(), rung="rollback_further", back_to=100, window=(1600, 1952))
    run.quarantine(1600, 1952)
    run.rollback(100)
    run.write("paused", key="plan1/2", reason="look", timeout_secs=7200.0)
    run.write("pause_lifted", key="plan1/2", waited_secs=90.0)
    run.done("pause", "paused and lifted")
    run.plan_done()
    run.train(141)
    run.verify()
    run.close_incident()
    run.train(200)
    probe = {"probe": "held_out_loss/code", "before": 2.0, "after": 3.0, "difference": 1.0}
    fell = {**probe, "tolerance": 0.1, "passed": False}
    fields = {"passed": False, "against": "s", "note": "", "again": True}
    run.write("verification", incident=1, verification={**fields, "probes": [fell]})
    capabilities = ["held_out_loss/code"]
    run.write("strengthen_data", incident=1, capabilities=capabilities, data="code text")
    run.write(
        "minimized",
        incident=1,
        verdict="each of the samples that stay is needed to bring it back",
        needed=[["a", 3]],
        undecided=[],
        given_back={"plan1/0": [["a", 1], ["a", 2]], "plan1/1": [["a", 1]]},
        num_replays=7,
        tokens={"times_fewer": [6.5, 13.0]},
    )
    for reason in ("refused", "refused", "timed out"):
        run.write("notice_failed", channel="slack (URL 1)", notice="plan", reason=reason)
    run.write("snapshot_skipped", snapshot="s", reason="the one before is being written")
    run.write("disk_low", free_bytes=1_500_000, needed_bytes=2_000_000)


def test_what_came_after_is_told_with_its_incident(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    aftermath(run)
    run.finish()
    told = summary(tmp_path / "run")
    assert told.notes == ()
    (incident,) = told.incidents
    assert incident.decided == "rollback_further to step 100, 352 samples set aside"
    assert [one.ending for one in incident.after.pauses] == ["lifted by a person after 1 min"]
    assert incident.after.needed is not None
    assert incident.after.needed.words == (
        "Each of the samples that stay is needed to bring it back. 1 sample needed, 0 undecided, "
        "2 given back, by 7 replays. Skipping 200 to 500 batches would have lost 6.5 to 13 times "
        "as many tokens."
    )
    assert [one.data for one in incident.after.strengthen] == ["code text"]
    assert [one.again for one in incident.verifications] == [False, True]
    assert incident.ending == "was undone, but a capability fell later, and nothing older helps"
    assert told.notices_failed == (
        "2 notifications by slack (URL 1) not delivered: refused",
        "1 notification by slack (URL 1) not delivered: timed out",
    )
    assert told.snapshots_skipped == (200,)
    assert told.snapshot_troubles == ("step 200: only 1.5 MB were free, for a snapshot of 2 MB",)
    json.dumps(told.to_json(), allow_nan=False)


def test_a_run_that_waits_says_so_until_it_is_lifted_or_halted(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(60)
    run.plan(diagnosis(55), rung="pause")
    run.write("paused", key="plan1/0", reason="look", timeout_secs=60.0)
    assert summary(tmp_path / "run").waits_since == 60
    run.write("halted", note="nobody came")
    told = summary(tmp_path / "run")
    assert told.waits_since is None
    assert told.incidents[0].after.pauses[0].ending == "nobody came within 1 min"
    run.close()


def test_advice_is_told_and_is_no_brief_episode(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(130)
    run.alarm("loss/global", 119, 9.0)
    plan = {"rung": "rollback", "why": "back to step 100", "actions": [], "target_step": 100}
    fields = {"plan": plan, "diagnosis": diagnosis().to_json(), "alarms": []}
    run.write("advice", advice_id=1, **fields)
    run.alarm("loss/global", 121, 9.0)
    run.finish()
    told = summary(tmp_path / "run")
    assert [(one.step, one.rung, one.cause) for one in told.advice] == [
        (130, "rollback", "optimizer_state_corrupt")
    ]
    assert (told.healed, told.incidents, told.notes) == ((), (), ())


def test_a_plan_that_was_not_carried_out_says_where_it_goes(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(130)
    run.plan(diagnosis(), rung="tighten_clip", back_to=100)
    run.close()
    (incident,) = summary(tmp_path / "run").incidents
    assert incident.decided == "tighten_clip to step 100"
