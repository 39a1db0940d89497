"""Tell people through apprise: mail, chat, SMS, pagers, over a hundred services by URL."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.hushed import hushed
from foreshock.core.settings import secret
from foreshock.core.sink import Channel, Notice, NoticeKind, NotSentError, Sink, check_kinds

_LOGGERS: Final = (
    "apprise",
    "urllib3.connection",
    "urllib3.connectionpool",
    "urllib3.util.retry",
)
"""What logs addresses on the way, at whatever level."""


@dataclass(frozen=True, kw_only=True)
class Apprise(Sink):
    """Send notices to every service in `urls`.

    Each URL is a channel of its own, so that one service that hangs holds up no other. It
    waits as long as apprise does: four seconds to connect and four between two answers, or
    what the URL says (`?cto=` and `?rto=`).

    Args:
        urls: addresses as apprise writes them (`slack://…`, `mailto://…`, `json://…`); they
            hold secrets, and are never shown or journalled.
        on: kinds of notices that are sent; every one by default.

    Raises:
        ConfigError: there is no URL, or a kind does not exist.

    Reference: https://github.com/caronc/apprise/wiki, the form of each service's URL.
    """

    name: ClassVar[str] = "apprise"
    urls: tuple[str, ...] = secret(default=())
    on: tuple[str, ...] = tuple(NoticeKind)

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("sinks.apprise has no urls; name at least one service to tell")
        check_kinds(self.name, self.on)

    def channels(self) -> Sequence[Channel]:
        try:
            apprise = importlib.import_module("apprise")
        except ImportError as error:
            raise MissingExtra(
                "notifications need apprise: pip install 'foreshock[notify]'"
            ) from error
        found: list[_Service] = []
        for number, url in enumerate(self.urls, 1):
            with hushed(_LOGGERS):
                service = _service(apprise, url)
            if service is None:
                raise ConfigError(
                    f"sinks.apprise: URL number {number} is none that apprise can use (its text "
                    "is kept back); try it with the command `apprise`"
                )
            scheme = url.partition("://")[0].strip().lower()
            found.append(_Service(f"{scheme} (URL {number})", service, apprise.NotifyType))
        return found


class _Service:
    """One service; see `Channel`."""

    def __init__(self, label: str, service: Any, kinds: Any) -> None:
        self.label = label
        self._service = service
        self._kinds = kinds

    def send(self, notice: Notice) -> None:
        kind = self._kinds.INFO
        if notice.kind is NoticeKind.RECOVERED:
            kind = self._kinds.SUCCESS
        elif notice.urgent:
            kind = self._kinds.FAILURE
        elif notice.kind is not NoticeKind.PLAN:
            kind = self._kinds.WARNING
        with hushed(_LOGGERS):
            sent = self._service.notify(title=notice.title, body=notice.body, notify_type=kind)
        if not sent:
            raise NotSentError("the service refused it, or did not answer")


def _service(apprise: Any, url: str) -> Any:
    """The service of a URL, or None. It is called without apprise's own dispatcher, whose
    threads a process that ends would have to wait for."""
    try:
        return apprise.Apprise.instantiate(url)
    except Exception:
        return None
