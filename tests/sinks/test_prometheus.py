"""The endpoint, scraped over HTTP from loopback."""

import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshock.sinks.prometheus import Prometheus
from tests.sinks.mirrored import HOSTILE, RUN, a_run, alarm, notice, step

prometheus_client = pytest.importorskip("prometheus_client")
parser = pytest.importorskip("prometheus_client.parser")
RULES = Path(__file__).parents[2] / "docs" / "examples" / "foreshock-alerts.yml"


def opened(*batches: list[Any], **options: Any) -> Any:
    (mirror,) = Prometheus(**{"port": 0, **options}).mirrors(RUN)
    mirror.adopt()
    mirror.open()
    for batch in batches:
        mirror.take(batch)
    return mirror


def scraped(mirror: Any) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{mirror.port}/metrics", timeout=60) as answer:
        return answer.read().decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for one in family.samples:
            labels = [f"{key}={value}" for key, value in sorted(one.labels.items()) if key != "run"]
            assert one.labels["run"] == RUN.name
            found[one.name, *labels] = one.value
    return found


def test_the_newest_values_are_served() -> None:
    mirror = opened(a_run())
    found = samples(scraped(mirror))
    mirror.close()
    assert found["foreshock_reading", "scope=global", "signal=loss"] == 2.25
    assert found["foreshock_reading", "scope=blocks.0.attn", "signal=grad_norm"] == 0.25
    assert found["foreshock_threshold", "scope=global", "signal=loss"] == 4.0
    assert found["foreshock_threshold", "scope=global", "signal=grad_norm"] == 6.0
    assert (found["foreshock_step",], found["foreshock_attempt",]) == (3.0, 2.0)
    assert found["foreshock_skipped_steps_total",] == 1.0
    assert found["foreshock_alarms_total", "kind=spike", "signal=loss"] == 1.0
    assert found["foreshock_notices_total", "kind=plan"] == 1.0
    assert found["foreshock_series_left_out",] == 0.0
    assert found["foreshock_last_step_timestamp_seconds",] == 1_700_002_003.0


def test_what_is_not_finite_is_served_and_a_threshold_that_is_gone_is_not() -> None:
    mirror = opened([step(1, np.nan, np.inf, -np.inf, limits=[1.0, 2.0, 3.0])])
    found = samples(scraped(mirror))
    assert np.isnan(found["foreshock_reading", "scope=global", "signal=loss"])
    assert found["foreshock_reading", "scope=global", "signal=grad_norm"] == np.inf
    assert found["foreshock_reading", "scope=blocks.0.attn", "signal=grad_norm"] == -np.inf
    mirror.take([step(2, limits=[np.inf, 2.0, np.nan])])
    again = samples(scraped(mirror))
    mirror.close()
    assert [key[1:] for key in again if key[0] == "foreshock_threshold"] == [
        ("scope=global", "signal=grad_norm")
    ]


def test_hostile_names_are_labels_of_bounded_length() -> None:
    alarms = tuple(alarm(1, name) for name in HOSTILE)
    mirror = opened([step(1, 1.0, series=HOSTILE, alarms=alarms)])
    text = scraped(mirror)
    mirror.close()
    found = [key for key in samples(text) if key[0] == "foreshock_reading"]
    assert len(found) == len(HOSTILE)
    assert 'foo{bar="1"} 2' not in text
    assert all(len(part) <= 130 for key in found for part in key)
    twins = tuple("grad_norm/" + "a" * 300 + end for end in "bc")
    mirror = opened([step(1, 1.0, 2.0, series=twins)])
    found = [value for key, value in samples(scraped(mirror)).items() if "reading" in key[0]]
    mirror.close()
    assert sorted(found) == [1.0, 2.0]


def test_thousands_of_series_are_bounded_and_the_others_counted() -> None:
    many = tuple(f"grad_norm/blocks.{at}" for at in range(5000))
    mirror = opened([step(1, series=many, limits=[1.0] * 5000)], [step(2, series=many)])
    found = samples(scraped(mirror))
    mirror.close()
    assert sum(key[0] == "foreshock_reading" for key in found) == 2000
    assert sum(key[0] == "foreshock_threshold" for key in found) == 2000
    assert found["foreshock_series_left_out",] == 3000.0
    odd = tuple(alarm(1, f"signal_{at}/global") for at in range(3000))
    mirror = opened([step(1, alarms=odd)])
    found = samples(scraped(mirror))
    mirror.close()
    assert sum(key[0] == "foreshock_alarms_total" for key in found) == 1000


def test_it_listens_on_loopback_and_frees_its_port() -> None:
    mirror = opened([step(1)])
    assert mirror._server.server_address[0] == "127.0.0.1"
    port = mirror.port
    mirror.close()
    again = opened([step(2)], port=port)
    assert samples(scraped(again))["foreshock_step",] == 2.0
    again.close()


def test_a_port_that_is_taken_fails_in_words() -> None:
    first = opened([])
    with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{first.port}: "):
        opened([], port=first.port)
    first.close()


def test_a_registry_of_the_loops_own_is_used() -> None:
    registry = prometheus_client.CollectorRegistry()
    mine = prometheus_client.Gauge("mine", "", registry=registry)
    mine.set(3)
    mirror = opened(a_run(), registry=registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert "mine 3.0" in text
    assert "foreshock_step{" in text
    mirror.close()
    assert "foreshock" not in prometheus_client.generate_latest(registry).decode()


def test_the_rules_of_the_documentation_ask_for_what_is_served() -> None:
    yaml = pytest.importorskip("yaml")
    mirror = opened([*a_run(), notice(4)])
    text = scraped(mirror)
    mirror.close()
    served = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | {key[0] for key in samples(text)}
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert group["name"] == "foreshock"
    names = []
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[A-Z][A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("page", "warning", "info")
        assert {"summary", "description"} == set(rule["annotations"])
        asked = set(re.findall(r"\bforeshock_\w+", rule["expr"]))
        assert asked, rule
        assert asked <= served, rule
        assert rule["expr"].count("(") == rule["expr"].count(")")
        for used in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert used in ("run", "signal", "scope", "kind", "instance")
        names.append(rule["alert"])
    assert len(set(names)) == len(names) >= 5
    kinds = re.findall(r'kind=~?"([^"]+)"', RULES.read_text())
    told = {"plan", "paused", "halted", "advice", "recovered", "incident_opened",
            "verification_failed", "nonfinite", "spike", "divergence"}  # fmt: skip
    assert {kind for one in kinds for kind in one.split("|")} <= told


def test_the_rules_fire_when_they_should_and_not_before() -> None:
    """With Prometheus's own tool, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    cases = Path(__file__).with_name("foreshock-alerts-test.yml")
    for what in (["check", "rules", str(RULES)], ["test", "rules", str(cases)]):
        done = subprocess.run([promtool, *what], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
