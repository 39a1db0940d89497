"""Mirror a run through OpenTelemetry: readings as metrics, alarms and notices as events."""

import importlib
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.hushed import hushed
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun, MirroredStep
from foreshock.core.names import split_series
from foreshock.core.settings import secret
from foreshock.core.sink import Mirror, MirrorSink, Notice, NoticeKind, NotMirroredError

_ADDRESSES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
)
_SDK: Final = "opentelemetry.sdk"
_HTTP: Final = "opentelemetry.exporter.otlp.proto.http"
_NEVER_MS: Final = 86_400_000
"""The exporter's own thread has nothing to do: what is taken in is sent at once."""
_MAX_EVENTS: Final = 4096
_LOGGERS: Final = ("opentelemetry", "urllib3", "requests")
"""What logs addresses on the way."""


@dataclass(frozen=True, kw_only=True)
class OpenTelemetry(MirrorSink):
    """Record through the providers that the loop has set up if it has, else over OTLP and HTTP.

    Metrics are the gauges `foreshock.reading` and `foreshock.threshold` (attributes `run`,
    `signal` and `scope`), `foreshock.step` and `foreshock.attempt`, and the counters
    `foreshock.alarms`, `foreshock.skipped_steps` and `foreshock.nonfinite_readings`: a gauge
    takes no NaN and no Inf, and keeps the last finite value. Of the steps that are exported
    together the newest counts, as gauges have no steps. After a rollback they are what the new
    attempt measured.

    Alarms and notices are log records with the event names `foreshock.alarm` and
    `foreshock.notice`, each with its `attempt` and `step`.

    Args:
        endpoint: the OTLP address ("http://127.0.0.1:4318"), to which `/v1/metrics` and
            `/v1/logs` are added; kept back, as it may hold a token. If empty, OpenTelemetry's
            environment variables say it.
        timeout_secs: how long one export may take.
        max_series: series that are recorded; OpenTelemetry keeps 2,000 attribute sets of a
            gauge unless its views say otherwise.
        logs: whether alarms and notices are sent as log records.

    Raises:
        ConfigError: no address is given, nor in the environment, and the loop has set up no
            provider; `timeout_secs` is not above 0; `max_series` is below 1.
    """

    name: ClassVar[str] = "opentelemetry"
    endpoint: str = secret(default="")
    timeout_secs: float = 5.0
    max_series: int = 2000
    logs: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.timeout_secs > 0:
            raise ConfigError(
                f"sinks.opentelemetry.timeout_secs is {self.timeout_secs}; it must be above 0"
            )
        if self.max_series < 1:
            raise ConfigError(
                f"sinks.opentelemetry.max_series is {self.max_series}; it must be at least 1"
            )

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        try:
            metrics = importlib.import_module("opentelemetry.metrics")
            logs = importlib.import_module("opentelemetry._logs")
        except ImportError as error:
            raise _missing() from error
        provided = _is_set_up(metrics.get_meter_provider())
        if not provided:
            if not self.endpoint and not any(os.environ.get(name) for name in _ADDRESSES):
                raise ConfigError(
                    "sinks.opentelemetry has no endpoint; name one, or set "
                    f"{_ADDRESSES[0]}, or set up a MeterProvider before the Guard is built"
                )
            try:
                for module in ("metric_exporter", "_log_exporter"):
                    importlib.import_module(f"{_HTTP}.{module}")
            except ImportError as error:
                raise _missing() from error
        return [_Telemetry(metrics, logs, self, run, provided=provided)]


class _Telemetry:
    """Meter and logger; see `Mirror`."""

    label = "opentelemetry"

    def __init__(
        self, metrics: Any, logs: Any, options: OpenTelemetry, run: MirroredRun, *, provided: bool
    ) -> None:
        self._metrics, self._logs, self._options = metrics, logs, options
        self._run = {"run": run.name}
        self._provided = provided
        self._providers: list[Any] = []
        self._outcomes: list[bool] = []
        self._noted: Sequence[Mirrored] = ()
        self._attributes: dict[str, dict[str, str]] = {}
        self._logger: Any = None

    def adopt(self) -> None:
        pass

    def open(self) -> None:
        meters, loggers = self._metrics.get_meter_provider(), self._logs.get_logger_provider()
        if not self._provided:
            meters, loggers = self._own()
            self._providers = [meters, loggers]
        meter = meters.get_meter("foreshock")
        self._logger = loggers.get_logger("foreshock") if self._options.logs else None
        self._reading = meter.create_gauge("foreshock.reading", description="newest value")
        about = "what a value would have to exceed to raise an alarm"
        self._threshold = meter.create_gauge("foreshock.threshold", description=about)
        self._step = meter.create_gauge("foreshock.step", description="optimizer step")
        about = "rises at every rollback and every resume"
        self._attempt = meter.create_gauge("foreshock.attempt", description=about)
        self._alarms = meter.create_counter("foreshock.alarms", description="alarms")
        about = "readings that were NaN or infinite, which no gauge holds"
        self._nonfinite = meter.create_counter("foreshock.nonfinite_readings", description=about)
        about = "updates that the gate did not make"
        self._skipped = meter.create_counter("foreshock.skipped_steps", description=about)

    def take(self, said: Sequence[Mirrored]) -> None:
        again = said is self._noted  # a counter must not count it twice
        for one in said:
            if isinstance(one, MirroredNotice):
                self._notice(one, one.notice)
                continue
            if not again:
                self._note(one)
            for alarm, line in zip(one.alarms, one.alarm_lines(), strict=False):
                self._event("foreshock.alarm", "WARN", one, line, alarm.to_json())
        self._noted = said
        if not self._providers:
            return
        self._outcomes.clear()
        with hushed(_loggers()):
            for provider in self._providers:
                provider.force_flush(round(2000 * self._options.timeout_secs))
        if not all(self._outcomes):
            raise NotMirroredError("the collector refused it, or did not answer")

    def close(self) -> None:
        with hushed(_loggers()):
            for provider in self._providers:
                provider.shutdown()

    def _note(self, step: MirroredStep) -> None:
        told = (self._reading, step.readings()), (self._threshold, step.limits())
        for gauge, values in told:
            for series, value in values.items():
                if (attributes := self._of(series)) is None:
                    continue
                if math.isfinite(value):
                    gauge.set(value, attributes)
                else:
                    self._nonfinite.add(1, attributes)
        self._step.set(step.step, self._run)
        self._attempt.set(step.attempt, self._run)
        if not step.committed:
            self._skipped.add(1, self._run)
        for alarm in step.alarms:
            self._alarms.add(1, {**self._run, "signal": alarm.signal, "kind": alarm.kind.value})

    def _notice(self, said: MirroredNotice, notice: Notice) -> None:
        severity = "ERROR" if notice.urgent else "WARN"
        if notice.kind is NoticeKind.RECOVERED:
            severity = "INFO"
        body = f"{notice.title}\n{notice.body}"
        self._event("foreshock.notice", severity, said, body, {"notice": notice.kind.value})

    def _event(
        self, name: str, severity: str, said: Mirrored, body: str, fields: dict[str, Any]
    ) -> None:
        if self._logger is None:
            return
        when = {"attempt": said.attempt, "step": said.step}
        self._logger.emit(
            timestamp=round(1e9 * said.time_secs),
            severity_number=self._logs.SeverityNumber[severity],
            severity_text=severity,
            body=body,
            attributes={**self._run, **fields, **when},
            event_name=name,
        )

    def _of(self, series: str) -> dict[str, str] | None:
        """Its attributes; None if there are too many series already."""
        known = self._attributes.get(series)
        if known is None and len(self._attributes) < self._options.max_series:
            signal, scope = split_series(series)
            known = self._attributes[series] = {**self._run, "signal": signal, "scope": scope}
        return known

    def _own(self) -> tuple[Any, Any]:
        """Providers that send only when they are flushed, in this thread."""
        metrics = importlib.import_module(f"{_SDK}.metrics")
        readers = importlib.import_module(f"{_SDK}.metrics.export")
        logs = importlib.import_module(f"{_SDK}._logs")
        processors = importlib.import_module(f"{_SDK}._logs.export")
        resource = importlib.import_module(f"{_SDK}.resources").Resource.create(
            {"service.name": os.environ.get("OTEL_SERVICE_NAME", "foreshock")}
        )
        meter = self._heard(importlib.import_module(f"{_HTTP}.metric_exporter"), "Metric")
        log = self._heard(importlib.import_module(f"{_HTTP}._log_exporter"), "Log")
        reader = readers.PeriodicExportingMetricReader(
            meter,
            export_interval_millis=math.inf,
            export_timeout_millis=1000 * self._options.timeout_secs,
        )
        meters = metrics.MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        loggers = logs.LoggerProvider(resource=resource, shutdown_on_exit=False)
        loggers.add_log_record_processor(
            processors.BatchLogRecordProcessor(
                log,
                schedule_delay_millis=_NEVER_MS,
                max_export_batch_size=_MAX_EVENTS,
                max_queue_size=_MAX_EVENTS,
            )
        )
        return meters, loggers

    def _heard(self, module: Any, what: str) -> Any:
        """An exporter whose outcome is heard of: its provider only logs a failure."""
        options: dict[str, Any] = {"timeout": self._options.timeout_secs}
        if self._options.endpoint:
            path = "v1/metrics" if what == "Metric" else "v1/logs"
            options["endpoint"] = f"{self._options.endpoint.rstrip('/')}/{path}"
        exporter = getattr(module, f"OTLP{what}Exporter")(**options)
        export = exporter.export

        def heard(*given: Any, **named: Any) -> Any:
            outcome = export(*given, **named)
            self._outcomes.append(outcome.name == "SUCCESS")
            return outcome

        exporter.export = heard
        return exporter


def _is_set_up(provider: Any) -> bool:
    """Whether a provider is more than the one that does nothing until another is set."""
    return hasattr(provider, "force_flush")


def _missing() -> MissingExtra:
    return MissingExtra(
        "OpenTelemetry needs its SDK and exporter: pip install 'foreshock[opentelemetry]'"
    )


def _loggers() -> list[str]:
    """The exporters' loggers that there are, which may log the address."""
    return [one for one in list(logging.Logger.manager.loggerDict) if one.startswith(_LOGGERS)]
