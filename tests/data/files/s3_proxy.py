"""A proxy in front of an S3 endpoint: adds latency, and fails in the ways in which stores and networks do.

It passes requests without a body on, one thread per connection, and relays the bytes of answers unseen in large pieces.

As a program it serves as a proxy until it is ended: python s3_proxy.py UPSTREAM_PORT SECONDS; it prints its port.
"""

import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_BUFFER = 1 << 20
_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_SLOW = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_ANSWERS = {"slow down": (b"503 Slow Down", _SLOW), "denied": (b"403 Forbidden", _DENIED)}

Fault = Literal["reset", "slow down", "denied", "cut", "short", "empty"]
"""reset: the connection breaks in the middle of the answer. cut: it ends there, as if all had been sent. short: half of
what was asked for is all that is promised. empty: nothing is, as of an empty object."""


@dataclass(frozen=True, slots=True)
class Request:
    """line: "GET /bucket/a.parquet?query HTTP/1.1". range: "bytes=0-9", empty without one."""

    line: str
    range: str

    @property
    def lists(self) -> bool:
        return self.line.startswith("GET") and "list-type=2" in self.line


class Proxy:
    """Serves on a free port of this host from the time it is made until it is closed.

    Attributes:
        latency_s: before each request is passed on.
        fault: which fault a request meets, or None; called in any thread.
        requests: so many came.
        port: where it listens.
    """

    def __init__(self, upstream: int, *, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.requests = 0
        self._upstream = upstream
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        """Break all connections, and wait for the threads."""
        self._closing.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        with self._lock:
            for each in self._open:
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as store:
            for each in (client, store):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, store}
            try:
                buffer = memoryview(bytearray(_BUFFER))
                while self._answer(client, store, buffer):
                    pass
            except OSError:
                pass  # one of the two has hung up
            finally:
                with self._lock:
                    self._open -= {client, store}

    def _answer(self, client: socket.socket, store: socket.socket, buffer: memoryview) -> bool:
        """Answer one request; whether the connection goes on."""
        head, rest = _head(client, buffer)
        if not head or rest:
            return False
        with self._lock:
            self.requests += 1
        line = head.split(b"\r\n", 1)[0].decode()
        fault = self.fault(Request(line, _field(head, b"range")))
        if fault in _ANSWERS:
            status, body = _ANSWERS[fault]
            body = b"" if line.startswith("HEAD") else body
            client.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
            return True
        if self.latency_s:
            self._closing.wait(self.latency_s)
        store.sendall(head)
        answer, first = _head(store, buffer)
        if not answer:
            return False
        size = 0 if line.startswith("HEAD") else int(_field(answer, b"content-length") or 0)
        if fault in ("short", "empty") and size > 1:
            size = size // 2 if fault == "short" else 0
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
            return False
        if fault is not None and size > 1:
            client.sendall(answer + bytes(size // 2))  # zeros, which must never be used
            if fault == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        client.sendall(answer + bytes(first))
        left = size - len(first)
        while left > 0:
            count = store.recv_into(buffer, min(left, _BUFFER))
            if not count:
                return False
            client.sendall(buffer[:count])
            left -= count
        return True


def _head(source: socket.socket, buffer: memoryview) -> tuple[bytes, bytes]:
    """A head with the empty line that ends it, and what came after it; empty if the connection has ended."""
    text = b""
    while b"\r\n\r\n" not in text:
        count = source.recv_into(buffer)
        if not count:
            return b"", b""
        text += buffer[:count]
    end = text.index(b"\r\n\r\n") + 4
    return text[:end], text[end:]


def _field(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip().decode()
    return ""


def main() -> None:
    print(Proxy(int(sys.argv[1]), latency_s=float(sys.argv[2])).port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
