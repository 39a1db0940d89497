"""Who may know whom (DESIGN section 3), and what importing may not do."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGE = SRC / "foreshock"

FAMILIES = [
    "detectors",
    "causes",
    "actions",
    "signals",
    "prevention",
    "faults",
    "probes",
    "rules",
    "readers",
    "sinks",
    "symptoms",
]
L1_GROUND = (
    "several",
    "calls",
    "fused",
    "norms",
    "taps",
    "ranks",
    "anatomy",
    "sampling",
    "attention",
)
"""What families stand on, in order."""
L1_PACKAGES = ("data", "snapshots")
READINGS = ("readings_parquet", "readings_files")  # L1, shared by a family and the run directory
L2_IN_ORDER = [
    "catalog",
    "logs",
    "outage",
    "compaction",
    "compactor",
    "readings_log",
    "run_view",
    "decided",
    "quiet_disk",
    "journal",
    "run_data",
    "vetting",
    "provenance",
    "lookout",
    "monitor",
    "policy_tables",
    "recipes",
    "inspection",
    "verification",
    "weights",
    "overrides",
    "optimizer_settings",
    "update",
    "attachment",
    "observation",
    "accord",
    "run_state",
    "checkpoints",
    "stepping",
    "attempts",
    "supervision",
    "handover",
    "pausing",
    "state_edits",
    "wholeness",
    "control",
    "recovery",
    "feed",
    "upkeep",
    "admission",
    "replicated",
    "starts",
    "shared_store",
    "sharded",
    "unison",
    "intake",
    "mirror_lane",
    "mirroring",
    "notices",
    "capability_tables",
    "stop_signals",
    "given",
    "assembly",
    "course",
    "guard",
    "own_loop",
    "flat_groups",
    "stand_in",
    "told",
    "watch_record",
    "watching",
    "costing",
    "driver",
    "replaying",
    "window",
    "trial",
    "arithmetic",
    "determinism",
    "set_aside",
    "incident_case",
    "levels",
    "scene",
    "scene_of_run",
    "step_comparison",
    "experiment_choice",
    "settling",
    "replays",
    "minimal",
    "giving_back",
    "background",
]
L3 = ["experiments", "checks", "integrations", "lab", "report"]
MAY_NAME_COMPONENTS = ("driver", "recipes")


def modules() -> dict[str, Path]:
    """Every module below foreshock, by its dotted name without the `foreshock.`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imports_in(source: str, module: str = "") -> set[str]:
    """What a module imports, inside functions too, but not for type checking only."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                walk(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                known = deeper.removeprefix("foreshock.") in MODULES
                found.add(deeper if deeper.startswith("foreshock.") and known else node.module)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(source))
    return found


MODULES = modules()
IMPORTS = {name: imports_in(path.read_text(), name) for name, path in MODULES.items()}


def forbidden(module: str, target: str) -> bool:
    """Whether `module` may not import `target`, both below foreshock."""
    room, goal = module.partition(".")[0], target.partition(".")[0]
    if goal == "":  # the root package: version and lazy names, it imports nothing itself
        return room in ("core", "durable", *FAMILIES, *L1_PACKAGES)
    if goal == "core":
        return False
    if room == "core":
        return True
    if goal in L1_GROUND:
        below = L1_GROUND[: L1_GROUND.index(goal)]
        return room in ("files", "source", "durable", *READINGS, *below)
    if room in L1_GROUND:
        return True
    if goal in READINGS:
        return room in ("files", "source", "durable") or (room, goal) == READINGS
    if room in READINGS:
        return True
    if goal in ("files", "source"):
        return room in (*FAMILIES, "files")
    if room in ("files", "source"):
        return True
    if goal == "durable":
        return room in FAMILIES or room == "durable"
    if room == "durable":
        return True
    if room in FAMILIES:
        return True
    if goal in L1_PACKAGES:
        return room in L1_PACKAGES and room != goal
    if room in L1_PACKAGES:
        return True
    if goal in FAMILIES:
        return room in L2_IN_ORDER and room not in MAY_NAME_COMPONENTS
    if goal in L2_IN_ORDER:
        if room == goal == "inspection":
            return False
        return room in L2_IN_ORDER and L2_IN_ORDER.index(goal) >= L2_IN_ORDER.index(room)
    if goal in L3:
        if room in L3:
            return room != goal
        return room != "cli"
    return not (room == goal == "cli")


def own_imports(module: str) -> list[str]:
    targets = (one for one in IMPORTS[module] if one.split(".")[0] == "foreshock")
    return sorted(target.removeprefix("foreshock").lstrip(".") for target in targets)


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module: str) -> None:
    assert [target for target in own_imports(module) if forbidden(module, target)] == []


def test_every_module_has_its_place() -> None:
    rooms = {name.partition(".")[0] for name in MODULES} - {""}
    known = {
        "core",
        "durable",
        "files",
        "source",
        *L1_GROUND,
        *READINGS,
        "cli",
        *FAMILIES,
        *L1_PACKAGES,
        *L2_IN_ORDER,
        *L3,
    }
    assert rooms <= known


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("core.case", "durable"),
        ("core.case", "detectors.spike"),
        ("durable", "journal"),
        ("durable", "norms"),
        ("norms", "durable"),
        ("norms", "update"),
        ("norms", "anatomy"),
        ("durable", "anatomy"),
        ("anatomy.finding", "observation"),
        ("anatomy.finding", "signals.gradients"),
        ("readings_parquet", "readings_files"),
        ("readings_files", "journal"),
        ("durable", "readings_files"),
        ("detectors.spike", "detectors.median_ratio"),
        ("detectors.spike", "causes.benign"),
        ("causes.benign", "durable"),
        ("data.stream", "snapshots.disk"),
        ("ranks.canary", "snapshots.codec"),
        ("data.stream", "journal"),
        ("journal", "monitor"),
        ("monitor", "detectors.spike"),
        ("guard", "driver"),
        ("guard", "lab.gpt"),
        ("lab.gpt", "report.page"),
        ("lab.gpt", "cli.run"),
        ("detectors.spike", ""),
    ],
)
def test_the_rules_above_forbid_what_they_should(module: str, target: str) -> None:
    assert forbidden(module, target)


def test_imports_are_seen_in_functions_but_not_for_types_only() -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\nelse:\n    import json\n"
        "def f():\n    from foreshock import monitor\n"
    )
    assert imports_in(source) == {"typing", "json", "foreshock.monitor"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.split(".")[0] in ("core", "durable")])
def test_the_lowest_layer_needs_the_standard_library_and_numpy_only(module: str) -> None:
    allowed = {"foreshock", *sys.stdlib_module_names}
    if module != "durable":
        allowed.add("numpy")
    assert {name.split(".")[0] for name in IMPORTS[module]} <= allowed


@pytest.mark.parametrize("module", [m for m in MODULES if m.split(".")[0] in ("core", "causes")])
def test_pure_parts_read_neither_clock_nor_environment_nor_chance(module: str) -> None:
    impure = {"time", "datetime", "os", "random", "secrets", "subprocess", "socket", "pathlib"}
    assert IMPORTS[module] & impure == set()


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_foreshock_costs_nothing() -> None:
    code = "import sys, foreshock; print(sorted({'torch', 'numpy', 'typer'} & set(sys.modules)))"
    assert in_a_new_process(code) == "[]\n"


def test_the_pure_parts_work_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import foreshock.monitor\n"
        "from foreshock.catalog import members\n"
        "print(len(members('detectors')) > 2, len(members('causes')) > 2, 'torch' in sys.modules)"
    )
    assert in_a_new_process(code) == "True True True\n"


def test_importing_every_module_changes_nothing_global() -> None:
    code = f"""
import hashlib, importlib, logging, os, pickle, random, signal, sys, warnings
import numpy as np
import torch

def state():
    return {{
        "random": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        "numpy": hashlib.sha256(pickle.dumps(np.random.get_state())).hexdigest(),
        "numpy errors": np.geterr(),
        "print": np.get_printoptions(),
        "torch": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "grad": torch.is_grad_enabled(),
        "logging": (logging.getLogger().level, len(logging.getLogger().handlers)),
        "hook": sys.excepthook is sys.__excepthook__,
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "environment": dict(os.environ),
        "filters": len(warnings.filters),
    }}

import bokeh, jinja2, rich.style, typer, safetensors.torch  # their own doings are not ours
import torch.distributed.checkpoint  # sympy adds a filter
for name in ("transformers.trainer", "accelerate", "lightning.pytorch", "lightning.fabric"):
    try:
        importlib.import_module(name)  # the frameworks too, where they are installed
    except ModuleNotFoundError:
        pass
before = state()
for name in {[f"foreshock.{name}".rstrip(".") for name in MODULES]!r}:
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        if not name.startswith("foreshock.integrations."):
            raise
after = state()
print([key for key in before if before[key] != after[key]])
"""
    assert in_a_new_process(code) == "[]\n"


@pytest.mark.parametrize("module", MODULES)
def test_files_stay_short_and_names_say_what_things_are(module: str) -> None:
    source = MODULES[module].read_text()
    assert len(source.splitlines()) <= 400
    names = [n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef)]
    vague = re.compile(r"(Manager|Handler|Processor|Engine|Helper|Utils?)$")
    assert [name for name in names if vague.search(name)] == []
