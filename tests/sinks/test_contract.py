"""What every sink promises."""

import dataclasses
import inspect
import sys
from pathlib import Path

import pytest

from foreshock.catalog import make, members
from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.sink import MirrorSink, NoticeKind, Sink
from foreshock.recipes import load, standard
from tests.sinks.mirrored import HOSTILE, RUN, a_run, step
from tests.sinks.settings import NEEDS, settings_of

ALL = sorted(members("sinks"))
MIRRORS = [name for name in ALL if issubclass(members("sinks")[name], MirrorSink)]
KEEPS_ITS_OWN_GLOBALS = ("trackio", "swanlab")
"""Their packages hold one folder and one run a process: tests of their own start one."""


def test_there_is_a_sink_for_each_destination_that_the_documentation_names() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text()
    assert [name for name in ALL if f"[sinks.{name}]" not in text] == []


@pytest.mark.parametrize("name", ALL)
def test_the_contract_of_a_sink(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    kind = members("sinks")[name]
    assert issubclass(kind, Sink)
    assert dataclasses.is_dataclass(kind)
    assert (kind.__doc__ or "").strip()
    sink = make("sinks", name, **settings_of(name, tmp_path))
    assert set(sink.on) <= set(NoticeKind)
    told = [*sink.channels(), *sink.mirrors(RUN)]
    assert told, "it tells nobody"
    assert all(one.label and "/" not in one.label.partition(" ")[0] for one in told)
    documented = inspect.getdoc(kind) or ""
    inherited = {field.name for field in dataclasses.fields(MirrorSink)}
    for field in dataclasses.fields(kind):
        assert field.name in inherited or f"{field.name}: " in documented, field.name


@pytest.mark.parametrize("name", ALL)
def test_without_its_package_a_sink_says_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "jsonl":
        pytest.skip("it needs none")
    package = NEEDS[name].partition(".")[0]
    for module in [one for one in sys.modules if one.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    sink = make("sinks", name, **settings_of(name, tmp_path))
    with pytest.raises(MissingExtra, match=r"pip install 'foreshock\["):
        (*sink.channels(), *sink.mirrors(RUN))


@pytest.mark.parametrize("name", [one for one in MIRRORS if one not in KEEPS_ITS_OWN_GLOBALS])
def test_a_mirror_takes_everything_that_a_run_may_say(name: str, tmp_path: Path) -> None:
    """NaN, infinities, hostile names, thousands of series, time that goes backwards."""
    pytest.importorskip(NEEDS[name])
    if name == "opentelemetry":
        pytest.skip("it needs a collector: see its own tests")
    sink = make("sinks", name, **settings_of(name, tmp_path))
    many = tuple(f"grad_norm/blocks.{at}" for at in range(3000))
    (mirror,) = sink.mirrors(RUN)
    mirror.adopt()
    mirror.open()
    mirror.take(a_run())
    mirror.take([step(4, 1.0, series=HOSTILE, limits=[2.0] * len(HOSTILE), attempt=2)])
    mirror.take([step(5, 1.0, series=many, limits=[2.0] * len(many), attempt=2)])
    mirror.close()


@pytest.mark.parametrize("name", ALL)
def test_building_a_sink_makes_nothing_and_its_repr_tells_no_secret(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip(NEEDS[name])
    settings = settings_of(name, tmp_path)
    sink = make("sinks", name, **settings)
    sink.mirrors(RUN)
    assert list(tmp_path.iterdir()) == []
    for secret in ("urls", "tracking_uri", "endpoint"):
        if secret in settings:
            assert str(settings[secret]) not in repr(sink)


@pytest.mark.parametrize("name", MIRRORS)
def test_a_recipe_names_it_as_toml(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path / "x")
    text = "\n".join(f"{key} = {str(value) if not isinstance(value, str) else repr(value)}"
                     for key, value in settings.items())  # fmt: skip
    path = tmp_path / "recipe.toml"
    path.write_text(f"[sinks.{name}]\nseries = ['loss/*']\nevery_steps = 3\n{text}\n")
    (sink,) = load(path).sinks
    assert sink == make("sinks", name, series=("loss/*",), every_steps=3, **settings)
    for setting, value in (("every_steps", 0), ("series", []), ("on", ["halts"])):
        with pytest.raises(ConfigError, match=f"sinks.{name}"):
            standard({"sinks": {name: {**settings, setting: value}}})
    with pytest.raises(ConfigError, match=f"sinks.{name} has no setting 'nosuch'"):
        standard({"sinks": {name: {**settings, "nosuch": 1}}})


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("jsonl", {}, "has no path"),
        ("jsonl", {"path": "a", "max_bytes": -1}, "max_bytes is -1"),
        ("opentelemetry", {"timeout_secs": 0}, "timeout_secs is 0"),
        ("opentelemetry", {"max_series": 0}, "max_series is 0"),
        ("prometheus", {"port": 70000}, "port is 70000"),
        ("prometheus", {"max_series": 0}, "max_series is 0"),
        ("prometheus", {"registry": "x"}, "must be a CollectorRegistry"),
        ("swanlab", {"mode": "cloud"}, "mode is 'cloud'"),
        ("swanlab", {"run": "x"}, "must be a swanlab.Run"),
        ("tensorboard", {}, "needs log_dir"),
        ("tensorboard", {"writer": "x"}, "must be a SummaryWriter"),
        ("tensorboard", {"writer": object(), "log_dir": "a"}, "or a writer in its place"),
        ("trackio", {"run": "x"}, "must be a trackio.Run"),
        ("wandb", {"mode": "disabled"}, "mode is 'disabled'"),
        ("wandb", {"run": "x"}, "must be a wandb.Run"),
        ("wandb", {"alert_wait_secs": -1.0}, "alert_wait_secs is -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, settings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        standard({"sinks": {name: settings}})
