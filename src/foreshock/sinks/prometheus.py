"""Mirror a run's present state for Prometheus: a `/metrics` endpoint."""

import importlib
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun, MirroredStep
from foreshock.core.names import split_series
from foreshock.core.sink import Mirror, MirrorSink, NotMirroredError

_MAX_LABEL_CHARS: Final = 120
_MAX_ALARM_LABELS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Prometheus(MirrorSink):
    """Serve the newest values at `http://ADDRESS:PORT/metrics`, to be scraped.

        foreshock_reading{run,signal,scope}          the newest value
        foreshock_threshold{run,signal,scope}        what it would have to exceed to alarm
        foreshock_step, foreshock_attempt            where the run stands
        foreshock_last_step_timestamp_seconds        when it last made a step
        foreshock_skipped_steps_total                updates that the gate did not make
        foreshock_alarms_total{run,signal,kind}      alarms since the process began
        foreshock_notices_total{run,kind}            decisions, by the kinds of notices
        foreshock_series_left_out                    series beyond `max_series`

    Prometheus has no steps: after a rollback a gauge is what the new attempt measured, and
    `foreshock_attempt` has risen. Steps between two scrapes are not seen; counters are.

    Args:
        port: where it listens; 0 for any that is free.
        address: of the network interface that it listens on. Loopback by default: whoever can
            reach it can read it, and it asks for no password.
        registry: a `prometheus_client.CollectorRegistry` of the loop's own, in place of port and
            address: it is then served by the loop.
        max_series: series that are served; others are counted. Each is two time series.

    A label longer than 120 letters is cut, and a checksum keeps two such labels apart.

    Raises:
        ConfigError: the port does not exist, or `max_series` is below 1.
    """

    name: ClassVar[str] = "prometheus"
    port: int = 9464
    address: str = "127.0.0.1"
    registry: Any = None
    max_series: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"sinks.prometheus.port is {self.port}; it must be 0 to 65535")
        if self.max_series < 1:
            raise ConfigError(
                f"sinks.prometheus.max_series is {self.max_series}; it must be at least 1"
            )
        if self.registry is not None and not hasattr(self.registry, "register"):
            raise ConfigError(
                f"sinks.prometheus.registry is {self.registry!r:.80}; it must be a "
                "CollectorRegistry, which only code can give"
            )

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        try:
            client = importlib.import_module("prometheus_client")
            importlib.import_module("prometheus_client.core")
        except ImportError as error:
            raise MissingExtra(
                "a /metrics endpoint needs prometheus-client: pip install 'foreshock[prometheus]'"
            ) from error
        return [_Endpoint(client, self, run)]


class _Endpoint:
    """What is served; see `Mirror`. A scrape reads it in a thread of the server."""

    label = "prometheus"

    def __init__(self, client: Any, options: Prometheus, mirrored: MirroredRun) -> None:
        self._client, self._options = client, options
        self._run = _label(mirrored.name)
        self._lock = threading.Lock()
        self._readings: dict[str, float] = {}
        self._thresholds: dict[str, float] = {}
        self._labels: dict[str, list[str]] = {}
        self._left_out: set[str] = set()
        self._last: MirroredStep | None = None
        self._num_skipped = 0
        self._alarms: dict[tuple[str, str], int] = {}
        self._notices: dict[str, int] = {}
        self._registry = options.registry
        self._server: Any = None
        self.port = options.port
        """Where it listens, once it is open."""

    def adopt(self) -> None:
        pass

    def open(self) -> None:
        if self._options.registry is not None:
            self._registry.register(self)
            return
        registry = self._client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, _ = self._client.start_http_server(
                self._options.port, addr=self._options.address, registry=registry
            )
        except OSError as error:
            where = f"{self._options.address}:{self._options.port}"
            raise NotMirroredError(f"cannot listen on {where}: {error.strerror}") from error
        self.port = self._server.server_port

    def take(self, said: Sequence[Mirrored]) -> None:
        with self._lock:
            for one in said:
                if isinstance(one, MirroredNotice):
                    kind = one.notice.kind.value
                    self._notices[kind] = self._notices.get(kind, 0) + 1
                else:
                    self._note(one)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        else:
            self._registry.unregister(self)

    def describe(self) -> list[Any]:
        """Nothing: what there is changes as the run goes on."""
        return []

    def collect(self) -> Iterator[Any]:
        """Everything as `prometheus_client` serves it."""
        with self._lock:
            readings, thresholds = dict(self._readings), dict(self._thresholds)
            alarms, notices = dict(self._alarms), dict(self._notices)
            last, num_skipped, num_left_out = self._last, self._num_skipped, len(self._left_out)
        scoped = ["run", "signal", "scope"]
        yield self._family("Gauge", "reading", "newest value of a series", scoped, readings)
        about = "what a value would have to exceed to raise an alarm"
        yield self._family("Gauge", "threshold", about, scoped, thresholds)
        if last is not None:
            for name, about, value in (
                ("step", "optimizer step", last.step),
                ("attempt", "rises at every rollback and every resume", last.attempt),
                ("last_step_timestamp_seconds", "when the last step was read", last.time_secs),
            ):
                yield self._family("Gauge", name, about, ["run"], {(): value})
        skipped, about = {(): num_skipped}, "updates that the gate did not make"
        yield self._family("Counter", "skipped_steps", about, ["run"], skipped)
        yield self._family("Counter", "alarms", "alarms", ["run", "signal", "kind"], alarms)
        counted = {(kind,): number for kind, number in notices.items()}
        yield self._family("Counter", "notices", "decisions told", ["run", "kind"], counted)
        left_out = {(): num_left_out}
        yield self._family("Gauge", "series_left_out", "series not served", ["run"], left_out)

    def _family(
        self, kind: str, name: str, about: str, labels: list[str], values: Mapping[Any, float]
    ) -> Any:
        family = getattr(self._client.core, f"{kind}MetricFamily")
        found = family(f"foreshock_{name}", about, labels=labels)
        for key, value in values.items():
            own = self._labels[key] if isinstance(key, str) else key
            found.add_metric([self._run, *own], value)
        return found

    def _note(self, step: MirroredStep) -> None:
        self._last = step
        self._num_skipped += not step.committed
        for series, value in step.readings().items():
            if self._is_served(series):
                self._readings[series] = value
        if step.thresholds is not None:  # one that holds no longer is not served any more
            limits = step.limits().items()
            self._thresholds = {name: limit for name, limit in limits if self._is_served(name)}
        for alarm in step.alarms:
            key = _label(alarm.signal), alarm.kind.value
            if key in self._alarms or len(self._alarms) < _MAX_ALARM_LABELS:
                self._alarms[key] = self._alarms.get(key, 0) + 1

    def _is_served(self, series: str) -> bool:
        if series in self._labels:
            return True
        if len(self._labels) >= self._options.max_series:
            self._left_out.add(series)
            return False
        self._labels[series] = [_label(part) for part in split_series(series)]
        return True


def _label(text: str) -> str:
    """A label of bounded length, different for different texts."""
    if len(text) <= _MAX_LABEL_CHARS:
        return text
    return f"{text[: _MAX_LABEL_CHARS - 9]}#{zlib.crc32(text.encode()):08x}"
