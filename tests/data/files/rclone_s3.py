"""A real S3 endpoint: `rclone serve s3` over a folder, whose folders are the buckets."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

KEY, SECRET = "freescale-key-of-tests", "freescale-secret-of-tests"


def program() -> str | None:
    """Where rclone is, None if it is not installed."""
    return shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """The port on which the folder is served until the block ends, and the process that does it."""
    found = program()
    assert found is not None
    options = {
        "--auth-key": f"{KEY},{SECRET}",
        "--addr": "127.0.0.1:0",  # a free port; it says which
        "--config": "",
        "--dir-cache-time": "0s",  # a file that was replaced is seen
        "--vfs-read-wait": "0s",
        "--etag-hash": "",  # else every request reads the whole file
        "--log-level": "NOTICE",
    }
    words = [word for option in options.items() for word in option]
    process = subprocess.Popen(
        [found, "serve", "s3", *words, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield _port(process), process.pid
    finally:
        process.terminate()
        process.communicate()


def _port(process: "subprocess.Popen[bytes]") -> int:
    """It says so when it listens."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line.decode()
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", said):
            return int(found[1])
    raise RuntimeError(f"rclone ended: {said}")


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
