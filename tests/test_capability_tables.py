"""What works where: declared once, read without the frameworks, the same on the page."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import foreshock.integrations
from foreshock import capability_tables
from foreshock.capability_tables import ABILITIES, declared_in
from foreshock.core.errors import CatalogError
from tools.write_capabilities import BEGIN, END, PAGE, written

FOLDER = Path(foreshock.integrations.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
GOOD = {
    "title": "t",
    "packages": ["no-such-package"],
    "extra": "hf",
    "yes": " ".join(ABILITIES),
    "refuses": {},
}


def tables():
    return {table.name: table for table in capability_tables.capability_tables()}


@pytest.mark.parametrize("name", MODULES)
def test_every_integration_says_what_it_can_do(name):
    source = (FOLDER / f"{name}.py").read_text()
    if declared_in(source, name) is None:
        pytest.skip(f"{name} has no CAPABILITIES yet")
    assert list(tables()[name].can) == list(ABILITIES)
    # What is refused is taken from the table where it is raised, so that both say the same.
    used = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    assert sum(one.id == "CAPABILITIES" for one in used) >= 2


def test_the_page_has_the_table_as_it_is():
    page = PAGE.read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert written(page) == page, "run python -m tools.write_capabilities"


def test_extras_are_those_of_the_package():
    offered = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for table in tables().values():
        assert f"\n{table.extra} = [" in offered


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"yes": "watch"}, "each ability is told of once; look at accumulate"),
        ({"untested": "watch"}, "look at what stands there twice"),
        ({"limited": {"fly": "it has no wings"}}, "look at fly"),
        ({"refuses": None}, "NoneType"),
        ({"title": ...}, "title"),
    ],
)
def test_a_table_that_is_none_is_refused(change, words):
    declared = {key: value for key, value in {**GOOD, **change}.items() if value is not ...}
    with pytest.raises(CatalogError, match=words) as error:
        capability_tables._table("own", declared)
    assert "integrations/own.py" in str(error.value)


def test_only_a_literal_is_read_and_nothing_is_run():
    assert declared_in("import nothing_of_the_kind\nCAPABILITIES = {'a': 1}\n", "own") == {"a": 1}
    assert declared_in("x = 1\n", "own") is None
    with pytest.raises(CatalogError, match="must be a literal"):
        declared_in("CAPABILITIES = dict(a=print())\n", "own")


def test_what_is_not_there_is_said():
    table = capability_tables._table("own", GOOD)
    assert not table.installed and table.packages == {"no-such-package": None}


def test_nothing_is_imported():
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'accelerate', 'lightning', 'deepspeed'):\n"
        "    sys.modules[name] = None\n"
        "from foreshock.cli.main import app\n"
        "try: app(['capabilities'])\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rollback" in done.stdout
