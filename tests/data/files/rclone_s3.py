"""A real S3 endpoint: `rclone serve s3` over a folder, whose folders are the buckets."""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

KEY, SECRET = "freescale-key-of-tests", "freescale-secret-of-tests"
_STARTING_S = 30


def program() -> str | None:
    """Where rclone is, None if it is not installed."""
    return shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """The port on which the folder is served until the block ends, and the process that does it."""
    found = program()
    assert found is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "--auth-key": f"{KEY},{SECRET}",
        "--addr": f"127.0.0.1:{port}",
        "--config": "",
        "--dir-cache-time": "0s",  # a file that was replaced is seen
        "--vfs-read-wait": "0s",
        "--etag-hash": "",  # else every request reads the whole file
        "--log-level": "ERROR",
    }
    words = [word for option in options.items() for word in option]
    process = subprocess.Popen(
        [found, "serve", "s3", *words, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        _wait_for(port, process)
        yield port, process.pid
    finally:
        process.terminate()
        process.communicate()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _STARTING_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"rclone ended: {process.communicate()[0].decode()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise TimeoutError(f"rclone does not listen after {_STARTING_S} s")


def filesystem(port: int, **options: Any) -> pafs.S3FileSystem:
    """A filesystem that reads from it; it does not retry by itself if nothing else is said."""
    options = {"retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=1)} | options
    return pafs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        region="eu",
        scheme="http",
        endpoint_override=f"127.0.0.1:{port}",
        **options,
    )
