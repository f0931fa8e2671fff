"""Parquet files damaged at random: every seed is one file and one damage.

`python damaged.py FOLDER FIRST LAST` lets the loader and the commands read the files of these seeds and prints one JSON
line before and one after each.
"""

import faulthandler
import io
import json
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compact_thrift as thrift
import numpy as np
import random_files
from footers import chunk, footer_of, with_footer

ENDS = (0, 1, 127, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
SCHEMA = """
[schema]
context = ["user"]
dense = ["price"]
time = "at"
[[schema.sequences]]
name = "uih"
fields = ["items"]
floats = ["costs"]
[[schema.sequences]]
name = "seen"
fields = ["kinds"]
"""


def good_file(rng: random.Random, rows: int, *, nulls: bool, **options: Any) -> bytes:
    """Small, in one of the ways that files are written."""
    numbers, sink = np.random.default_rng(rng.randrange(1 << 30)), io.BytesIO()
    made = random_files.columns(numbers, rows, nulls=nulls, lengths=rng.choice(["short", "short", "equal", "long"]))
    random_files.write(sink, made, numbers, **options)
    return sink.getvalue()


def damaged(seed: int) -> tuple[str, bytes]:
    """(which damage, the file)."""
    rng = random.Random(seed)
    options = {"compression": rng.choice([*random_files.CODECS, "brotli"]), "write_page_index": rng.random() < 0.3}
    raw = good_file(rng, rng.choice([1, 7, 200, 600]), nulls=False, row_group_size=rng.choice([150, 1000]), **options)
    damage = rng.choice(DAMAGES)
    return damage.__name__, damage(raw, rng)


def bits(raw: bytes, rng: random.Random) -> bytes:
    new = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 8])):
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return bytes(new)


def footer_bits(raw: bytes, rng: random.Random) -> bytes:
    size = 8 + int.from_bytes(raw[-8:-4], "little")
    return raw[:-size] + bits(raw[-size:-8], rng) + raw[-8:]


def stretch(raw: bytes, rng: random.Random) -> bytes:
    begin, size = rng.randrange(len(raw)), rng.choice([1, 8, 64, 512])
    filler = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
    return (raw[:begin] + filler + raw[begin + size :])[: len(raw)]


def cut(raw: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(raw)), rng.choice([1, 4, 100, len(raw)])
    return rng.choice([raw[:at], raw[at:], raw[:at] + raw[at + size :], raw[:at] + rng.randbytes(size) + raw[at:]])


def footer_numbers(raw: bytes, rng: random.Random) -> bytes:
    footer = footer_of(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        wrong_number(footer, rng)
    return with_footer(raw, footer)


def statistics(raw: bytes, rng: random.Random) -> bytes:
    footer = footer_of(raw)
    one = _any_chunk(footer, rng)
    if 12 in one:
        one[12].put(rng.choice([1, 2, 5, 6]), thrift.BINARY, rng.randbytes(rng.choice([0, 1, 4, 8, 12, 300])))
    for histogram in (2, 3):
        if histogram in one.get(16, ()) and rng.random() < 0.5:
            one[16][histogram].values = [rng.choice(ENDS) for _ in range(rng.randrange(4))]
    return with_footer(raw, footer)


def page_headers(raw: bytes, rng: random.Random) -> bytes:
    footer = footer_of(raw)
    one = _any_chunk(footer, rng)
    at = rng.choice([one[9], one.get(11) or one[9]])
    header, end = thrift.read_struct(raw, at)
    for _ in range(rng.choice([1, 1, 2])):
        wrong_number(header, rng)
    new = thrift.write_struct(header)
    moved = len(new) - (end - at)
    one[7] += moved
    for other in (column[3] for group in footer[4].values for column in group[1].values):
        for place in (9, 11):
            if other.get(place, 0) > at:
                other[place] += moved
    return with_footer(raw[:at] + new + raw[end:], footer)


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    bits, footer_bits, stretch, cut, footer_numbers, footer_numbers, statistics, page_headers, page_headers
)  # fmt: skip


def wrong_number(struct: thrift.Struct, rng: random.Random) -> None:
    _, holder, key = rng.choice(list(thrift.numbers(struct)))
    right = holder[key]
    wrong = rng.choice([right + 1, right - 1, -right, right * 1000, rng.choice(ENDS), -rng.choice(ENDS)])
    holder[key] = max(-(2**63), min(wrong, 2**63 - 1))


def _any_chunk(footer: thrift.Struct, rng: random.Random) -> thrift.Struct:
    groups = footer[4].values
    group = rng.randrange(len(groups))
    return chunk(footer, group, rng.randrange(len(groups[group][1].values)))


def play(
    damage: Callable[[int], tuple[str, bytes]], read: Callable[[Path, int], tuple[Any, list[str]]], sample: bytes
) -> None:
    """The program: let `read` read the files of the seeds; it gives what was found, and what is wrong with that."""
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    path = folder / "one.parquet"
    path.write_bytes(sample)
    _, faults = read(path, 0)  # everything is imported and compiled now
    assert not faults, faults[0]
    before = _memory("VmRSS")
    for seed in range(first, last):
        what, raw = damage(seed)
        path.write_bytes(raw)
        print(json.dumps({"seed": seed, "damage": what}), flush=True)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        found, faults = read(path, seed)
        said = {"seed": seed, "damage": what, "bytes": len(raw), "found": found, "faults": faults}
        print(json.dumps(said | {"peak_mb": (_memory("VmHWM") - before) / 1024}), flush=True)


def _memory(what: str) -> int:
    """KiB of this process: VmRSS now, VmHWM at most since `clear_refs`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def read_in_every_way(path: Path, seed: int) -> tuple[dict[str, str], list[str]]:
    """By the loader and the commands: what each said, and those that failed as they should not."""
    from typer.testing import CliRunner

    from freescale_tools.cli import app
    from freescale_tools.console.errors import UsageError
    from freescale_tools.profile.measure import Columns, full
    from freescale_tools.scan.files import open_files
    from fsdata import FreeScaleDataLoader, ParquetSource, Schema
    from fsdata.errors import FreeScaleError

    schema = path.with_name("schema.toml")
    schema.write_text(SCHEMA)

    def load(on_error: str) -> str:
        source = ParquetSource(path, on_error=on_error)  # type: ignore[arg-type]
        with FreeScaleDataLoader(source, Schema.from_toml(schema), batch_size=64) as loader:
            return f"{sum(batch.features.stride() for batch in loader)} rows"

    def command(*arguments: object) -> str:
        words = [str(one) for one in (arguments[0], path, *arguments[1:])]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        lines = done.stderr.splitlines()
        errors = sum(line.startswith("error: ") for line in lines)
        found = sum(line.startswith("found: ") for line in lines)
        allowed = {0: (0,), 1: (0, 1), 2: (1,)}.get(done.exit_code, ())
        if errors + found < len(lines) or errors not in allowed:
            raise AssertionError(f"{arguments[0]}: status {done.exit_code}, {done.stderr}")
        return f"status {done.exit_code}"

    def lengths() -> str:
        try:
            return f"{len(full(open_files([str(path)]), Columns(sequences=('items',)), paths=[]).histograms)} columns"
        except UsageError as error:
            return str(error)

    read, out = ("--sequence", "items"), ("--out", path.with_name(f"out-{seed}"))
    collide = ("--ids", "items", "--time", "at", "--ranks", 2, "--batch-size", 2)
    # Every how many files; what slow commands read pages with is in `lengths`.
    ways: dict[str, tuple[int, Callable[[], str]]] = {
        "raise": (1, lambda: load("raise")),
        "skip": (1, lambda: load("skip")),
        "lengths": (1, lengths),
        "check": (2, lambda: command("check", "--schema", schema)),
        "profile": (100, lambda: command("profile", *read, "--time", "at", "--ranks", 8, *out)),
        "quick": (16, lambda: command("profile", *read, "--quick", *out)),
        "collisions": (4, lambda: command("collisions", *collide, *out)),
        "optimize": (4, lambda: command("optimize", *out)),
    }
    found, faults = {}, []
    for name, (every, way) in ways.items():
        if seed % every:
            continue
        try:
            found[name] = way()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            if not isinstance(error, FreeScaleError) or name not in ("raise", "skip"):
                faults.append(f"{name}: {traceback.format_exc()}")
    return found, faults


if __name__ == "__main__":
    play(damaged, read_in_every_way, good_file(random.Random(3), 200, nulls=False))
