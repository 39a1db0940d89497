"""An environment of its own for the other tools, next to the project's and never in it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "benchmarks" / "peers-constraints.txt"

TOOLS = ("mosaicml", "nvdlfw_inspect", "cockpit-for-pytorch", "backpack-for-pytorch")
"""Installed without what they ask for: two of them ask for torchvision, which nothing here uses."""

NEEDED = (
    *("numpy", "safetensors"),  # foreshock
    *("wandb", "pyyaml"),  # wandb, nvdlfw_inspect
    *("einops", "unfoldNd"),  # backpack
    *("json-tricks", "matplotlib", "pandas", "scipy", "seaborn", "setuptools"),  # cockpit
)


def make(folder: Path, torch_index: str | None) -> None:
    """Make the environment, with this package in it as it stands here.

    Args:
        folder: where; must not exist yet.
        torch_index: index of packages to take torch from; the default one if None.

    Raises:
        SystemExit: the folder exists, or torchvision came in.
        subprocess.CalledProcessError: a package cannot be installed.
    """
    if folder.exists():
        raise SystemExit(f"{folder} exists already; give another folder, or use it by --peers-env")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    pinned = ["install", "--constraint", str(CONSTRAINTS)]
    index = ["--index-url", torch_index] if torch_index else []
    for command in (
        [*pinned, *index, "torch"],
        [*pinned, *NEEDED],
        [*pinned, "--no-deps", *TOOLS],
        ["install", "--no-deps", "--editable", str(ROOT)],
    ):
        print("pip", *command, file=sys.stderr)
        subprocess.run([*pip, *command], check=True, stdout=sys.stderr)
    check = (
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('torchvision') is not None)"
    )
    if subprocess.run([str(folder / "bin" / "python"), "-c", check], check=False).returncode:
        raise SystemExit(f"torchvision is installed in {folder}, and must not be")
