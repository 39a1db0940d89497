"""The case studies: their arithmetic, and that the pages quote what was printed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.case_studies import __main__ as command
from benchmarks.case_studies import bloom, marin, palm, running
from foreshock.driver import build

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/cases"
KEPT = ROOT / "docs/measurements/case-studies.json"
NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:,\d{3})*(?:\.\d+)?")
SAID = ("What the tool said", "Where it was wrong, unsure or silent", "What it would have cost")


def kept(name: str) -> dict[str, Any]:
    return json.loads(KEPT.read_text())["studies"][name]


# ---- the pages quote what was printed ----------------------------------------------------


def renderings(value: float) -> set[str]:
    """How a page may write a number: as it is, rounded, or as a share of a hundred."""
    found = {f"{value:,.{digits}f}" for digits in range(5)} | {f"{value:.3g}"}
    found |= {f"{100 * value:.0f}"} if 0 <= value <= 1 else set()
    return {one.lstrip("-") for one in found}


def numbers_in(found: Any) -> set[str]:
    match found:
        case bool() | None:
            return set()
        case int() | float():
            return renderings(found)
        case str():
            return {one.replace(",", "") for one in NUMBER.findall(found)} | set(
                NUMBER.findall(found)
            )
        case list():
            return set().union(*map(numbers_in, found))
        case dict():
            keys = set().union(*map(numbers_in, map(str, found)))
            return keys.union(*map(numbers_in, found.values()))
        case _:
            raise TypeError(found)


def quoted(page: str) -> list[str]:
    """The numbers of the sections that tell what the tool did, but for code and links."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)
    told = "\n".join(one for one in sections if one.startswith(SAID))
    plain = re.sub(r"\]\([^)]*\)|`[^`]*`|<!--.*?-->", " ", told, flags=re.DOTALL)
    return [one.lstrip("-") for one in NUMBER.findall(plain)]


def strangers(page: str, study: dict[str, Any]) -> list[str]:
    known = {one.lstrip("-") for one in numbers_in(study)}
    return [one for one in quoted(page) if one not in known]


@pytest.mark.parametrize("name", command.STUDIES)
def test_every_number_that_a_page_quotes_was_printed(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert len(quoted(page)) >= 8
    assert strangers(page, kept(name)) == []


@pytest.mark.parametrize("name", command.STUDIES)
def test_a_page_names_its_date_its_command_and_a_public_source(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert kept(name)["date"] in page
    assert f"python -m benchmarks.case_studies --only {name}" in page
    assert "https://" in page
    for section in ("What the report says", *SAID[:2], "What was done"):
        assert f"## {section}" in page, section
    assert f"({name}.md)" in (PAGES / "README.md").read_text()


def test_a_number_that_nobody_printed_is_found() -> None:
    page = "# A\n\n## What the tool said\n\nThe loss moved at step 4,711, 13 % of 0.25.\n"
    study = {"a": 0.1296, "b": [0.2498], "c": "step 4711"}
    assert strangers(page, study) == ["4,711"]
    assert strangers(page.replace("4,711", "4711"), study) == []
    assert strangers(page.replace("13 %", "14 %"), study) == ["4,711", "14"]


# ---- the kept results agree with themselves ----------------------------------------------


def every_incident(found: Any) -> list[dict[str, Any]]:
    if isinstance(found, dict):
        own = found.get("incidents", [])
        own = own if isinstance(own, list) else []
        return own + [one for value in found.values() for one in every_incident(value)]
    if isinstance(found, list):
        return [one for value in found for one in every_incident(value)]
    return []


@pytest.mark.parametrize("name", ["palm", "opt", "glm"])
def test_leads_and_plans_of_the_kept_incidents_add_up(name: str) -> None:
    incidents = every_incident(kept(name))
    assert incidents
    for one in incidents:
        moved = one["loss_moved_step"]
        assert one["lead_steps"] == (None if moved is None else moved - one["onset_step"])
        assert one["cause"] == one["first_diagnosis"][0][0]
        assert one["onset_step"] <= one["alarm_step"] <= one["decided"][0]["step"]
        chances = [chance for _, chance in one["first_diagnosis"]]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1.0001
        for plan in one["decided"]:
            assert (plan["back_to"] is None) == ("rollback" not in plan["actions"])


def test_the_factors_of_marin_follow_from_its_levels() -> None:
    one = kept("marin")
    assert one["times_after_6"] == marin.times(one["levels"]["after_6"], one["levels"]["before"])


def test_the_costs_of_palm_follow_from_the_kept_recovery() -> None:
    one = kept("palm")
    assert one["our_cost"] == palm.our_cost(json.loads(palm.RECOVERY.read_text()))
    tokens = one["their_cost"]["tokens"]
    assert tokens == {"least": 300 * 2048 * 2048, "most": 600 * 2048 * 2048}


# ---- the arithmetic -----------------------------------------------------------------------


def ran(losses: dict[int, float]) -> Any:
    """A run with a second attempt, which went further and was worse."""
    first = {(1, step): loss for step, loss in losses.items()}
    return SimpleNamespace(losses=first | {(2, step): 99.0 for step in range(240, 400)})


def test_excess_is_over_the_twin_on_the_same_steps_of_the_first_attempt() -> None:
    healthy = ran(dict.fromkeys(range(240, 300), 2.0))
    struck = ran({step: 2.0 + (0.5 if step >= 260 else 0.0) for step in range(240, 281)})
    assert running.excess(struck, healthy, 250, 259) == 0
    assert running.excess(struck, healthy, 255, 264) == 0.25
    assert running.excess(struck, healthy, 275, 299) == 0.5  # it ended at 280
    assert running.loss_is_worse_from(struck, healthy) == 251
    assert running.loss_is_worse_from(struck, healthy, limit=0.3) == 257
    assert running.loss_is_worse_from(healthy, healthy) is None
    assert running.last_of_first(struck) == 280


def test_the_first_alarm_of_each_series_is_told_once_and_in_order() -> None:
    def alarm(step: int, series: str, attempt: int = 1) -> dict[str, Any]:
        told = {"detector": "spike", "series": series}
        return {"kind": "alarm", "attempt": attempt, "step": step, "alarm": told}

    records = [alarm(9, "b"), alarm(7, "a"), alarm(10, "a"), {"kind": "skip"}, alarm(3, "c", 2)]
    assert running._first_alarms(records) == [[7, "spike", "a"], [9, "spike", "b"]]


def test_causes_are_ranked_whatever_their_order() -> None:
    given = [
        {"cause": name, "probability": p}
        for name, p in zip("abcd", (0.1, 0.5, 0.3, 0.05), strict=True)
    ]
    assert running.top_three(given) == [["b", 0.5], ["c", 0.3], ["a", 0.1]]


# ---- what is quick is made anew ------------------------------------------------------------


def test_bloom_is_told_as_it_was(tmp_path: Path) -> None:
    now, then = bloom.study(tmp_path), kept("bloom")
    assert now["known_at"] == then["known_at"]
    for part in ("log", "in_a_long_log"):
        assert now[part]["class"] == then[part]["class"] == "recovering_spike"
        assert now[part]["episodes"] == then[part]["episodes"]


def test_marked_samples_do_harm_to_a_late_state_only() -> None:
    program = build(palm.palm_program, running.settings(palm._SEED))
    places = range((running.STRIKE_STEP - 1) * 16, running.STRIKE_STEP * 16)
    batch = program.stream.data_at(list(places))
    marked = (batch[:, :3] == palm.MARK).all(dim=1)
    assert int(marked.sum()) == palm._SAMPLES
    model = program.model
    model.train()
    with torch.no_grad():
        early = program.loss(model, batch)
        assert float(model.passes) == 1
        model.passes.fill_(palm._LATE)
        late, clean = program.loss(model, batch), program.loss(model, batch[~marked])
        model.passes.fill_(palm._LATE - 10)
        unmarked = program.loss(model, batch[~marked])
    assert float(late.total) > 10 * float(early.total)
    assert float(clean.total) == float(unmarked.total)
    assert torch.equal(late.per_sample[~marked], early.per_sample[~marked])


def test_a_study_that_is_made_anew_leaves_the_others_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "made_now", lambda name: {"made": name})
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"studies": {"marin": {"made": "before"}, "palm": {}}}))
    command.main(["--only", "palm,bloom", "--json", str(path)])
    found = json.loads(path.read_text())["studies"]
    assert list(found) == ["bloom", "palm", "marin"]
    assert found["marin"] == {"made": "before"}
    assert found["palm"] == {"made": "palm"}
    assert json.loads(capsys.readouterr().out) == {"studies": found}
    with pytest.raises(SystemExit):
        command.main(["--only", "gopher"])
