"""MLflow on a SQLite store of its own."""

import threading
from typing import Any

import numpy as np
import pytest

from foreshock.sinks.mlflow import Mlflow
from tests.sinks.mirrored import HALT, HOSTILE, RUN, SERIES, a_run, alarm, notice, step

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store for all: MLflow takes seconds to make its tables."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def opened(uri: str, **options: Any) -> Any:
    (mirror,) = Mlflow(tracking_uri=uri, **options).mirrors(RUN)
    mirror.adopt()
    mirror.open()
    return mirror


def history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    """By time, as MLflow shows it on an axis of time."""
    found = mlflow.MlflowClient(tracking_uri=uri).get_metric_history(run_id, name)
    return [(one.step, one.value) for one in sorted(found, key=lambda one: one.timestamp)]


def test_a_run_of_its_own_keeps_every_value_with_its_attempt(uri: str) -> None:
    mirror = opened(uri, experiment="e")
    mirror.take(a_run())
    mirror.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert (run.info.run_name, run.info.status) == (RUN.name, "FINISHED")
    losses = history(uri, run.info.run_id, "foreshock/loss/global")
    assert [at for at, _ in losses] == [1, 2, 3, 2, 3]
    np.testing.assert_array_equal([value for _, value in losses], [2.0, np.nan, 9.0, 2.5, 2.25])
    attempts = history(uri, run.info.run_id, "foreshock/attempt")
    assert attempts == [(1, 1.0), (2, 1.0), (3, 1.0), (2, 2.0), (3, 2.0)]
    limits = history(uri, run.info.run_id, "foreshock/threshold/grad_norm/global")
    assert limits == [(1, 5.0), (2, 6.0)]
    assert run.data.tags["foreshock.notice"].startswith("plan 1 <b>")
    assert "spike on loss/global" in run.data.tags["foreshock.alarms"]
    assert run.data.metrics["foreshock/loss/global"] == 2.25


def test_what_is_given_twice_counts_once(uri: str) -> None:
    mirror = opened(uri)
    mirror.take([step(1)])
    mirror.take([step(1)])
    mirror.close()
    assert history(uri, mirror._run_id, "foreshock/loss/global") == [(1, 1.0)]


def test_a_run_that_was_halted_has_failed(uri: str) -> None:
    mirror = opened(uri)
    mirror.take([step(1), notice(1, HALT)])
    mirror.close()
    run = mlflow.MlflowClient(tracking_uri=uri).get_run(mirror._run_id)
    assert run.info.status == "FAILED"


def test_the_active_run_of_the_loop_is_used_and_left_open(uri: str) -> None:
    mlflow.set_tracking_uri(uri)
    with mlflow.start_run() as active:
        (mirror,) = Mlflow().mirrors(RUN)
        mirror.adopt()

        def work() -> None:  # in another thread, in which no run is active
            mirror.open()
            mirror.take([step(5)])
            mirror.close()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        mlflow.log_metric("mine", 1.0, step=1)
        assert mlflow.active_run() is not None
    run_id = active.info.run_id
    assert history(uri, run_id, "foreshock/loss/global") == [(5, 5.0)]
    assert history(uri, run_id, "mine") == [(1, 1.0)]


def test_a_run_that_is_named_goes_on(uri: str) -> None:
    first = opened(uri)
    first.take([step(1)])
    first.close()
    again = opened(uri, run_id=first._run_id)
    again.take([step(2)])
    again.close()
    assert [at for at, _ in history(uri, first._run_id, "foreshock/loss/global")] == [1, 2]
    with pytest.raises(Exception, match="nosuch"):
        opened(uri, run_id="nosuch")


def test_names_that_mlflow_refuses_are_told_apart(uri: str) -> None:
    twins = ("grad_norm/a<b", "grad_norm/a>b", "grad_norm/../x", "grad_norm/" + "y" * 400)
    mirror = opened(uri)
    series = HOSTILE + twins
    mirror.take([step(1, *range(len(series)), series=series, alarms=(alarm(1, HOSTILE[0]),))])
    mirror.close()
    data = mlflow.MlflowClient(tracking_uri=uri).get_run(mirror._run_id).data
    values = [data.metrics[name] for name in data.metrics if "norm" in name or "loss" in name]
    assert sorted(values) == list(range(len(series)))


def test_thousands_of_series_are_sent_in_parts(uri: str) -> None:
    many = tuple(f"grad_norm/blocks.{at}" for at in range(2500))
    mirror = opened(uri)
    mirror.take([step(1, *range(2500), series=many)])
    mirror.close()
    data = mlflow.MlflowClient(tracking_uri=uri).get_run(mirror._run_id).data
    assert data.metrics["foreshock/grad_norm/blocks.2499"] == 2499.0
    assert len(SERIES) == 3
