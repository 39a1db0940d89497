"""OTLP over HTTP to a collector of our own, and through a loop's own providers."""

import gzip
import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from foreshock.core.errors import ConfigError
from foreshock.core.sink import NotMirroredError
from foreshock.sinks.opentelemetry import OpenTelemetry
from tests.sinks.mirrored import HOSTILE, RUN, a_run, alarm, notice, step

sdk = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
metrics_pb = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
logs_pb = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")


class Collector(ThreadingHTTPServer):
    """Remembers what it was sent; answers 200, or 400 while it refuses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.refuses = False
        self.metrics: list[Any] = []
        self.logs: list[Any] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def points(self) -> dict[tuple[str, ...], float]:
        """The newest value of each metric and attribute set, but for `run`."""
        found = {}
        for request in self.metrics:
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    labels = {one.key: one.value.string_value for one in point.attributes}
                    assert labels.pop("run") == RUN.name
                    value = getattr(point, point.WhichOneof("value"))
                    found[metric.name, *sorted(labels.values())] = value
        return found

    def events(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Event name, severity, body and attributes of each record."""
        found = []
        for request in self.logs:
            for one in request.resource_logs[0].scope_logs[0].log_records:
                attributes = {
                    item.key: getattr(item.value, item.value.WhichOneof("value"))
                    for item in one.attributes
                }
                told = (one.event_name, one.severity_text, one.body.string_value, attributes)
                found.append(told)
        return found


class _Answer(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        kind, kept = (
            (metrics_pb.ExportMetricsServiceRequest, self.server.metrics)
            if self.path == "/v1/metrics"
            else (logs_pb.ExportLogsServiceRequest, self.server.logs)
        )
        if not self.server.refuses:
            kept.append(kind.FromString(body))
        self.send_response(400 if self.server.refuses else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        collector.server_close()
        thread.join()


def opened(**options: Any) -> Any:
    (mirror,) = OpenTelemetry(**options).mirrors(RUN)
    mirror.adopt()
    mirror.open()
    return mirror


def test_readings_thresholds_alarms_and_notices_are_sent() -> None:
    with collecting() as collector:
        mirror = opened(endpoint=collector.endpoint, timeout_secs=60)
        mirror.take(a_run())
        mirror.close()
    found = collector.points()
    assert found["foreshock.reading", "global", "loss"] == 2.25
    assert found["foreshock.reading", "blocks.0.attn", "grad_norm"] == 0.25
    assert found["foreshock.threshold", "global", "grad_norm"] == 6.0
    assert (found["foreshock.step",], found["foreshock.attempt",]) == (3, 2)
    assert found["foreshock.alarms", "loss", "spike"] == 1
    assert found["foreshock.skipped_steps",] == 1
    (raised, told) = collector.events()
    assert raised[:2] == ("foreshock.alarm", "WARN")
    assert raised[3]["threshold"] == 4.0
    assert (raised[3]["attempt"], raised[3]["step"]) == (1, 3)
    assert told[0] == "foreshock.notice"
    assert told[2].startswith("plan 1 <b>")


def test_hostile_names_and_thousands_of_series_are_bounded() -> None:
    many = tuple(f"grad_norm/blocks.{at}" for at in range(3000))
    with collecting() as collector:
        mirror = opened(endpoint=collector.endpoint, timeout_secs=60)
        alarms = tuple(alarm(1, name) for name in HOSTILE)
        mirror.take([step(1, 1.0, series=HOSTILE, alarms=alarms)])
        mirror.take([step(2, 1.0, series=many)])
        mirror.close()
    found = collector.points()
    assert sum(key[0] == "foreshock.reading" for key in found) == 2000
    assert len(collector.events()) == len(HOSTILE)


def test_what_is_not_finite_is_counted_as_gauges_hold_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collecting() as collector:
        mirror = opened(endpoint=collector.endpoint, timeout_secs=60)
        mirror.take([step(1, 2.0), step(2, float("nan"), float("inf"), 1.0)])
        mirror.close()
    found = collector.points()
    assert found["foreshock.reading", "global", "loss"] == 2.0
    assert found["foreshock.nonfinite_readings", "global", "loss"] == 1
    assert found["foreshock.nonfinite_readings", "global", "grad_norm"] == 1
    assert ("foreshock.nonfinite_readings", "blocks.0.attn", "grad_norm") not in found
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_collector_that_refuses_is_a_failure_and_nothing_is_counted_twice() -> None:
    with collecting() as collector:
        mirror = opened(endpoint=collector.endpoint, timeout_secs=60)
        said = a_run()
        collector.refuses = True
        with pytest.raises(NotMirroredError, match="refused it"):
            mirror.take(said)
        collector.refuses = False
        mirror.take(said)
        mirror.close()
    found = collector.points()
    assert found["foreshock.alarms", "loss", "spike"] == 1
    assert found["foreshock.skipped_steps",] == 1
    assert [name for name, *_ in collector.events()] == ["foreshock.alarm", "foreshock.notice"]


def test_a_collector_that_is_not_there_is_a_failure_without_its_address(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    mirror = opened(endpoint="http://hunter2@127.0.0.1:9", timeout_secs=0.3)
    with caplog.at_level(logging.DEBUG), pytest.raises(NotMirroredError) as caught:
        mirror.take([step(1, alarms=(alarm(1),))])
    mirror.close()
    printed = capfd.readouterr()
    for said in (str(caught.value), caplog.text, printed.out, printed.err):
        assert "hunter2" not in said
        assert "127.0.0.1" not in said


def test_providers_that_the_loop_has_set_up_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = importlib.import_module("opentelemetry.metrics")
    _logs = importlib.import_module("opentelemetry._logs")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    logs_sdk = pytest.importorskip("opentelemetry.sdk._logs")
    logs_export = pytest.importorskip("opentelemetry.sdk._logs.export")
    kept = logs_export.InMemoryLogRecordExporter()
    loggers = logs_sdk.LoggerProvider()
    loggers.add_log_record_processor(logs_export.SimpleLogRecordProcessor(kept))
    monkeypatch.setattr(_logs, "get_logger_provider", lambda: loggers)
    mirror = opened()
    mirror.take([*a_run(), notice(4)])
    mirror.close()
    data = reader.get_metrics_data()
    names = {one.name for one in data.resource_metrics[0].scope_metrics[0].metrics}
    assert {"foreshock.reading", "foreshock.threshold", "foreshock.step"} <= names
    assert len(kept.get_finished_logs()) == 3
    provider.shutdown()  # it was left open


def test_without_an_address_it_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="has no endpoint"):
        OpenTelemetry().mirrors(RUN)


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        mirror = opened(timeout_secs=60, logs=False)
        mirror.take(a_run())
        mirror.close()
    assert collector.points()["foreshock.step",] == 3
    assert collector.logs == []
