"""Settings by which each sink can be built without a network, and the package it needs."""

from pathlib import Path
from typing import Any

NEEDS = {
    "apprise": "apprise",
    "jsonl": "json",
    "mlflow": "mlflow",
    "opentelemetry": "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "prometheus": "prometheus_client",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""By sink."""


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    """What the sink writes lies below `folder`; it sends nothing but to loopback."""
    return {
        "apprise": {"urls": ("json://127.0.0.1",)},
        "jsonl": {"path": str(folder / "run.jsonl")},
        "mlflow": {"tracking_uri": f"sqlite:///{folder / 'mlflow.db'}"},
        "opentelemetry": {"endpoint": "http://127.0.0.1:9", "timeout_secs": 0.2},
        "prometheus": {"port": 0},
        "swanlab": {"mode": "offline", "log_dir": str(folder / "swanlog")},
        "tensorboard": {"log_dir": str(folder / "tb")},
        "trackio": {"project": "p"},
        "wandb": {"mode": "offline", "dir": str(folder)},
    }[name]
