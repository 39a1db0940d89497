"""What a process starts a run with: settings, packages, environment, code, data, machine.

Recorded at every start. Two starts that differ explain what no reading does: another kernel, a
default that moved with a version, a weight decay that was edited.
"""

import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from foreshock.several import SeveralOptimizers, SeveralSchedulers

_PACKAGES: Final = (
    "foreshock", "torch", "numpy", "transformers", "accelerate", "lightning", "deepspeed",
    "triton", "flash_attn", "xformers", "apex", "transformer_engine", "torchao", "bitsandbytes",
    "peft", "trl", "datasets", "tokenizers", "safetensors", "megatron", "torchtitan",
    "liger_kernel",
)  # fmt: skip
"""What may change numbers or data, told where it is loaded."""
_DISTRIBUTIONS: Final = {"megatron": "megatron-core", "lightning": "lightning"}
_ENVIRONMENT: Final = (
    "NCCL_", "CUDA_", "CUBLAS_", "CUDNN_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "OMP_", "MKL_",
    "OPENBLAS_", "NVTE_", "NVIDIA_TF32", "XLA_", "ROCM_", "HIP_", "HSA_", "MIOPEN_", "TRITON_",
    "FLASH_", "XFORMERS_", "ACCELERATE_", "DEEPSPEED_", "DS_", "TOKENIZERS_PARALLELISM", "GLOO_",
)  # fmt: skip
"""Beginnings of the variables that choose kernels, precision and transports."""
_SECRET: Final = ("TOKEN", "KEY", "SECRET", "PASSW", "AUTH", "CREDENTIAL")
_OF_THE_START: Final = ("RANK", "PORT", "ADDR", "_ID", "STORE", "PATH", "_DIR", "CACHE", "HOST")
"""Parts of names that tell one start from the next and choose no number."""
_OPTIONS: Final = (
    "lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad", "alpha",
    "fused", "foreach", "capturable", "maximize", "decoupled_weight_decay",
)  # fmt: skip
_MOST_CHARACTERS: Final = 160
_MOST_FACTS: Final = 64


def start_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    clip: float | None = None,
    accumulate: int = 1,
    stream: Mapping[str, Any] | None = None,
    num_ranks: int = 1,
    facts: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict[str, str]]:
    """Everything that a start is told apart by, `{kind: {name: text}}`; no secret among it.

    Args:
        model: plain, as it was built.
        optimizer: as it was built, before a checkpoint restored other settings.
        scheduler: its kind is told.
        scaler: its kind is told.
        clip: largest gradient norm.
        accumulate: micro-steps in a step.
        stream: what the data says of itself.
        num_ranks: that train together.
        facts: what the program says of itself.
        environment: variables; by default those of the process.
    """
    told = {
        "clip": clip,
        "accumulate": accumulate,
        "scheduler": _kinds(scheduler, SeveralSchedulers),
        "scaler": _kinds(scaler, ()),
        "optimizer": _kinds(optimizer, SeveralOptimizers),
        "dtypes": ", ".join(sorted({str(one.dtype) for one in model.parameters()})),
        "parameters": sum(one.numel() for one in model.parameters()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        **_groups(optimizer.param_groups, by_schedule=scheduler is not None),
        **dict(list((facts or {}).items())[:_MOST_FACTS]),
    }
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    return {
        "configuration": _texts(told),
        "package": _packages(),
        "environment": _texts(_chosen(os.environ if environment is None else environment)),
        "code": _code(model),
        "data": _texts(_data(stream or {})),
        "world": _texts({"ranks": num_ranks}),
        "hardware": _texts(
            {
                "device": torch.cuda.get_device_name(device)
                if device.type == "cuda"
                else device.type,
                "processor": platform.machine(),
                "threads": torch.get_num_threads(),
            }
        ),
    }


def _kinds(thing: Any, several: Any) -> str:
    members = thing.members if several and isinstance(thing, several) else (thing,)
    return ", ".join("none" if one is None else type(one).__name__ for one in members)


def _groups(groups: Iterable[Mapping[str, Any]], *, by_schedule: bool) -> dict[str, Any]:
    """Settings of each group; where a schedule moves the rate, the rate that it began with."""
    found: dict[str, Any] = {}
    for number, group in enumerate(groups):
        for name in _OPTIONS:
            if name not in group:
                continue
            value = group[name]
            if name == "lr":
                value = group.get("initial_lr", None if by_schedule else value)
            if isinstance(value, torch.Tensor):
                value = value.detach().tolist()
            found[f"group {number} {name}"] = value
    return found


def _packages() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        if name not in sys.modules:
            continue
        try:
            found[name] = metadata.version(_DISTRIBUTIONS.get(name, name))
        except metadata.PackageNotFoundError:
            found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    found["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    return _texts(found)


def _chosen(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_ENVIRONMENT)
        and not any(part in name for part in (*_SECRET, *_OF_THE_START))
    }


def _code(model: torch.nn.Module) -> dict[str, str]:
    """Digests of the main script and of the file of the model's class, and the revision."""
    files: dict[str, Path] = {}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main:
        files["main script"] = Path(main)
    with suppress(TypeError, OSError):
        files["model"] = Path(inspect.getfile(type(model)))
    found: dict[str, str] = {}
    for name, path in files.items():
        try:
            found[name] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        except OSError:
            continue
    revision = _revision(files.get("main script") or files.get("model"))
    return found | ({"revision": revision} if revision else {})


def _revision(file: Path | None) -> str:
    """The commit that a file's repository stands on; "" where there is none. Nothing is run."""
    try:
        folders = [] if file is None else list(file.resolve().parents)
        for folder in folders:
            head = folder / ".git" / "HEAD"
            if not head.is_file():
                continue
            said = head.read_text("utf-8").strip()
            if not said.startswith("ref: "):
                return said[:40]
            branch = folder / ".git" / said.removeprefix("ref: ")
            return branch.read_text("utf-8").strip()[:40] if branch.is_file() else ""
    except (OSError, ValueError):
        pass
    return ""


def _data(stream: Mapping[str, Any]) -> dict[str, Any]:
    """What the data says of itself, but for how far a run has read it."""
    return {
        name: value for name, value in stream.items() if isinstance(value, str | int | float | bool)
    }


def _texts(told: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value)[:_MOST_CHARACTERS] for name, value in told.items()}
