"""Components are found, not listed; other people's packages join by their entry points."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import foreshock
from foreshock import catalog
from foreshock.catalog import FAMILIES, make, members
from foreshock.core.action import Action
from foreshock.core.errors import CatalogError

FOLDER = Path(foreshock.__path__[0])
PLUG_IN = '''
from dataclasses import dataclass
from typing import ClassVar
from foreshock.core.detector import Alarm, AlarmKind, Column, ScalarDetector, Threshold

@dataclass(frozen=True, kw_only=True)
class Roof(ScalarDetector[Column]):
    """Alarm above a fixed roof."""
    name: ClassVar[str] = "roof"
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False
    roof: float = 10.0

    def start(self, series):
        return Column(series)

    def see(self, column, step, value):
        if value <= self.roof:
            return None
        return Alarm(kind=AlarmKind.SPIKE, detector=self.name, series=column.series,
                     step=step, onset_step=step, value=value)

    def threshold(self, column):
        return Threshold(0.0, self.roof, 0)

@dataclass(frozen=True, kw_only=True)
class Half(ScalarDetector[Column]):
    name: ClassVar[str] = "half"
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False

class Plain(Roof.__mro__[1]):
    name = "plain"
    start = see = threshold = lambda *_: None

@dataclass(frozen=True, kw_only=True)
class Clash(Roof):
    name: ClassVar[str] = "spike"

@dataclass(frozen=True, kw_only=True)
class Nameless(Roof):
    name = ""

NUMBER = 3
class Stranger: pass
'''
USE = """
import sys
import numpy as np
from foreshock import catalog, recipes
from foreshock.monitor import Monitor
assert catalog.members("detectors")["roof"].__module__ == "acme_watch"
settings = {"signals": False, "rules": False, "detectors": {"roof": {"roof": 7}}}
recipe = recipes.standard(settings)
monitor = Monitor(["loss/global"], detectors=recipe.detectors, causes=recipe.causes, quiet_steps=9)
for step, value in enumerate([5.0, 6.0, 7.0, 8.0]):
    for alarm in monitor.observe(1, step, True, np.array([value])):
        print(alarm.detector, alarm.series, alarm.step)
print(monitor.diagnose(None).first_mover, monitor.limit("loss/global"))
"""
LIST = """
from foreshock.catalog import members
from foreshock.core.errors import CatalogError
try:
    print(sorted(members("detectors")))
except CatalogError as error:
    print("CatalogError:", error)
"""


def install(folder: Path, *entries: str) -> None:
    """A real distribution, as an installer would leave it: a module and its metadata."""
    (folder / "acme_watch.py").write_text(PLUG_IN)
    (folder / "acme_broken.py").write_text("import a_package_that_is_not_there\n")
    info = folder / "acme_watch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-watch\nVersion: 1.0\n")
    (info / "RECORD").write_text("")
    lines = "\n".join(f"c{number} = {entry}" for number, entry in enumerate(entries))
    (info / "entry_points.txt").write_text(f"[foreshock.components]\n{lines}\n")


def run_with(folder: Path, code: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_detector_of_another_package_joins_without_any_change_here(tmp_path: Path) -> None:
    install(tmp_path, "acme_watch:Roof")
    told = run_with(tmp_path, USE)
    assert told == "roof loss/global 3\nloss/global 7\n"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("acme_broken:Gone", ["acme_broken:Gone", "cannot be loaded", "not_there", "uninstall"]),
        ("acme_watch:Missing", ["acme_watch:Missing", "cannot be loaded"]),
        ("acme_watch:NUMBER", ["acme_watch:NUMBER", "no component", "Detector"]),
        ("acme_watch:Stranger", ["acme_watch:Stranger", "no component"]),
        ("acme_watch:Half", ["acme_watch:Half", "every method of its contract"]),
        ("acme_watch:Plain", ["acme_watch:Plain", "frozen dataclass"]),
        ("acme_watch:Clash", ["two components called 'spike'", "acme_watch.Clash"]),
        ("acme_watch:Nameless", ["acme_watch.Nameless has no name"]),
    ],
)
def test_a_broken_plug_in_is_one_clear_error(tmp_path: Path, entry: str, says: list[str]) -> None:
    install(tmp_path, "acme_watch:Roof", entry)
    told = run_with(tmp_path, LIST)
    assert told.startswith("CatalogError: ")
    assert told.count("\n") == 1
    for part in says:
        assert part in told


@pytest.mark.parametrize("family", FAMILIES)
def test_every_file_of_a_family_is_found_under_its_name(family: str) -> None:
    files = {path.stem for path in (FOLDER / family).glob("*.py")} - {"__init__"}
    assert files <= set(members(family))
    for name, member in members(family).items():
        assert member.name == name
    assert list(members(family)) == sorted(members(family))


def test_a_family_cannot_be_changed_by_those_who_ask_for_it() -> None:
    with pytest.raises(TypeError):
        members("actions")["halt"] = Action  # type: ignore[index]


@dataclass(frozen=True, kw_only=True)
class Impostor(Action):
    """Bears a name that is not its file's."""

    name: ClassVar[str] = "halt"
    needs: ClassVar[frozenset[Any]] = frozenset()

    def apply(self, control: Any) -> str:
        return ""


def file_holding(monkeypatch: pytest.MonkeyPatch, member: type[Any], file: str) -> None:
    """Let the actions' folder seem to hold one file with one class, and find nothing else."""
    monkeypatch.setattr(member, "__module__", f"foreshock.actions.{file}")
    module = SimpleNamespace(__name__=f"foreshock.actions.{file}", Member=member)
    package = SimpleNamespace(__path__=[])
    found = {"foreshock.actions": package, module.__name__: module}
    real = catalog.import_module
    monkeypatch.setattr(catalog, "import_module", lambda name: found.get(name) or real(name))
    files = [SimpleNamespace(name=file)]
    monkeypatch.setattr(catalog.pkgutil, "iter_modules", lambda path: files)
    monkeypatch.setattr(catalog, "entry_points", lambda group: [])


def test_the_file_bears_the_components_name(monkeypatch: pytest.MonkeyPatch) -> None:
    file_holding(monkeypatch, Impostor, "stop")
    with pytest.raises(CatalogError, match=r"actions/stop.py: Impostor.name is 'halt'.*'stop'"):
        members.__wrapped__("actions")
    file_holding(monkeypatch, Impostor, "halt")
    assert members.__wrapped__("actions") == {"halt": Impostor}


def test_a_class_without_a_name_is_told_of_too(monkeypatch: pytest.MonkeyPatch) -> None:
    file_holding(monkeypatch, Impostor, "halt")
    monkeypatch.delattr(Impostor, "name")
    with pytest.raises(CatalogError, match=r"Impostor.name is None"):
        members.__wrapped__("actions")


def test_make_says_what_there_is() -> None:
    assert make("detectors", "spike", z=8.0).z == 8.0
    with pytest.raises(CatalogError, match=r"no family 'detector'; there are actions, causes"):
        members("detector")
    with pytest.raises(CatalogError, match=r"detectors has no 'spikes'; it has .*spike"):
        make("detectors", "spikes")
    with pytest.raises(CatalogError, match=r"spike has no setting 'zed'; it has .*onset_z"):
        make("detectors", "spike", zed=8.0)
    with pytest.raises(CatalogError, match=r"actions/halt.*note"):
        make("actions", "halt")
