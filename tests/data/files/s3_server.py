"""An S3 endpoint for one object, which can be made to fail: enough for Arrow's own S3 filesystem to read a file."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.fs as pafs


class Store:
    """`fail`: None, an HTTP status for every answer, or "close" to hang up."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.fail: int | str | None = None
        self.failed = 0


@contextlib.contextmanager
def s3(raw: bytes) -> Iterator[tuple[Store, pafs.S3FileSystem]]:
    """A store with the object `bucket/a.parquet`, and a filesystem that reads it and does not retry by itself."""
    store = Store(raw)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            if store.fail is not None:
                store.failed += 1
                self.close_connection = True
                if store.fail != "close":
                    self.send_response(int(store.fail))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                return
            part, status = store.raw, 200
            if "Range" in self.headers:
                first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                part, status = store.raw[int(first) : int(last) + 1], 206
            self.send_response(status)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if body:
                self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store, pafs.S3FileSystem(
            anonymous=True, region="eu", scheme="http", endpoint_override=f"127.0.0.1:{server.server_port}",
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1), connect_timeout=5, request_timeout=5,
        )  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
