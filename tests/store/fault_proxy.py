"""A proxy in front of an S3 server that does what networks and servers do: slow, cut, hang, refuse, lie, go away.

Faults are chosen by method, path and first byte of the range, and happen so many times.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

ALWAYS = 1 << 30
SLOW_DOWN = "SlowDown"
INTERNAL_ERROR = "InternalError"


class Request(NamedTuple):
    """What a client asked for. begin: first byte of the range, None: no range."""

    method: str
    path: str
    begin: int | None


@dataclass
class Answer:
    """What is sent back, and how."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    sent_bytes: int | None = None
    """Of the body, before the connection is closed. None: all."""
    pause_seconds: float = 0.0
    """Before each eighth of the body."""


Fault = Callable[[Answer], Answer | None]
"""What becomes of the server's answer; None: the connection is closed without one."""


@dataclass
class Plan:
    """A fault, and when it happens."""

    fault: Fault
    method: str
    path: str
    begin: int | None
    times: int

    def takes(self, request: Request) -> bool:
        if self.times <= 0 or request.method != self.method or self.path not in request.path:
            return False
        return self.begin is None or self.begin == request.begin


@dataclass
class FaultProxy:
    """A running proxy. ``is_away`` True: it closes every connection at once."""

    upstream: str
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    is_away: bool = False
    plans: list[Plan] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, fault: Fault, *, path: str = "", method: str = "GET", begin: int | None = None, times: int = ALWAYS) -> None:
        """Let something happen to requests from now on."""
        self.plans.append(Plan(fault, method, path, begin, times))

    def heal(self) -> None:
        """No more faults; hanging requests end, and what was asked is forgotten."""
        self.plans, self.requests, self.is_away = [], [], False
        self.ended.set()
        self.ended = threading.Event()

    def ranges_read(self, path: str) -> list[int]:
        """First bytes of the ranges that were asked for, in that order."""
        return [each.begin for each in self.requests if path in each.path and each.method == "GET" and each.begin is not None]

    def fault_of(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for plan in self.plans:
                if plan.takes(request):
                    plan.times -= 1
                    return plan.fault
        return None


def refuse(status: int, code: str) -> Fault:
    """The server says no."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>please wait</Message></Error>".encode()
    return lambda answer: Answer(status, [("Content-Type", "application/xml")], body)


def hang(answer: Answer) -> None:
    """No answer until ``heal``."""


def close(answer: Answer) -> None:
    """The connection is closed without a word."""


def cut(answer: Answer) -> Answer:
    """In the middle of the body."""
    answer.sent_bytes = len(answer.body) // 2
    return answer


def truncate(answer: Answer) -> Answer:
    """Fewer bytes than there are, and lengths that say so: no client can notice."""
    answer.body = answer.body[: len(answer.body) // 2]
    return answer


def flip(answer: Answer) -> Answer:
    """One bit is another."""
    answer.body = bytes([answer.body[0] ^ 1]) + answer.body[1:]
    return answer


def lie_about_etag(answer: Answer) -> Answer:
    """Every answer has another ETag."""
    others = [(name, value) for name, value in answer.headers if name.lower() != "etag"]
    answer.headers = [*others, ("ETag", f'"{time.monotonic_ns():032x}"')]
    return answer


def slow(pause_seconds: float) -> Fault:
    """The body comes in eight pieces, each after a pause."""

    def answered(answer: Answer) -> Answer:
        answer.pause_seconds = pause_seconds
        return answer

    return answered


@dataclass(frozen=True)
class Meanwhile:
    """Something happens before the server is asked for this; its answer is not changed."""

    act: Callable[[], None]

    def __call__(self, answer: Answer) -> Answer:
        return answer


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy on a free port, until the end."""
    proxy = FaultProxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            wanted = self.headers.get("Range", "")
            begin = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else None
            request = Request(self.command, self.path, begin)
            fault = close if proxy.is_away else proxy.fault_of(request)
            if fault is hang:
                proxy.ended.wait(60)
            if isinstance(fault, Meanwhile):
                fault.act()
            answer = None if fault in (close, hang) else self._forward(body)
            if fault is not None and answer is not None:
                answer = fault(answer)
            with suppress(OSError):
                self._send(answer)

        def _forward(self, body: bytes) -> Answer:
            connection = http.client.HTTPConnection(urlsplit(proxy.upstream).netloc, timeout=30)
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            content = response.read()
            connection.close()
            return Answer(response.status, response.getheaders(), content)

        def _send(self, answer: Answer | None) -> None:
            if answer is None:
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            has_length = False
            for name, value in answer.headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    has_length = True
                elif name.lower() in ("content-length", "connection", "transfer-encoding", "content-range"):
                    continue
                self.send_header(name, value)
            if not has_length:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            body = answer.body if answer.sent_bytes is None else answer.body[: answer.sent_bytes]
            piece = max(1, -(-len(body) // 8))
            for at in range(0, len(body), piece):
                if answer.pause_seconds:
                    proxy.ended.wait(answer.pause_seconds)
                self.wfile.write(body[at : at + piece])
                self.wfile.flush()
            if answer.sent_bytes is not None:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.heal()
        server.shutdown()
        server.server_close()
