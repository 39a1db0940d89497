"""Services on loopback that take notices, refuse them, hang, or drop the line."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "hunter2-xoxb-token"


class Service(ThreadingHTTPServer):
    """Remembers what it was sent. `mood` is how it answers: take, refuse, hang or drop."""

    daemon_threads = True

    def __init__(self, mood: str = "take") -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.mood = mood
        self.received: list[dict[str, Any]] = []
        self.arrived = threading.Semaphore(0)
        self.let_go = threading.Event()

    def url(self, **options: float) -> str:
        """Its address as apprise writes it, with secrets in it."""
        extra = "".join(f"&{key}={value}" for key, value in options.items())
        return f"json://me:{SECRET}@127.0.0.1:{self.server_port}/{SECRET}?x={SECRET}{extra}"

    def wait(self, number: int = 1) -> bool:
        """Wait until so many notices have come."""
        return all(self.arrived.acquire(timeout=30) for _ in range(number))


class _Answer(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.server.arrived.release()
        if self.server.mood == "hang":
            self.server.let_go.wait(60)
        if self.server.mood == "drop":
            self.connection.close()
            return
        self.send_response(200 if self.server.mood == "take" else 500)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(mood: str = "take") -> Iterator[Service]:
    """A service while the block runs."""
    service = Service(mood)
    thread = threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.let_go.set()
        service.shutdown()
        service.server_close()
        thread.join()
