"""Parquet files damaged at random: every seed is one file and one damage.

`python damaged.py FOLDER FIRST LAST` lets the loader and the commands read the files of these seeds and prints one JSON
line before and one after each.
"""

import copy
import faulthandler
import io
import json
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import compact_thrift as thrift
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from footers import chunk, footer_of, with_footer

CODECS = ("none", "snappy", "zstd", "gzip", "lz4", "brotli")
ENDS = (0, 1, 127, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
SCHEMA = """
[schema]
context = ["user"]
dense = ["price"]
labels = ["click"]
time = "at"
[[schema.sequences]]
name = "uih"
fields = ["items", "kinds"]
[schema.candidates]
name = "candidates"
fields = ["shown"]
"""


def good_file(rng: random.Random) -> bytes:
    """Small, of 1 to 4 row groups, in one of the ways that files are written."""
    rows = rng.choice([1, 7, 200, 3000])
    values = np.random.default_rng(rng.randrange(1000))
    lengths = values.integers(0, 9, rows)
    shown = values.integers(1, 4, rows)
    columns = {
        "user": pa.array(values.integers(0, 50, rows)),
        "at": pa.array(np.arange(rows), rng.choice([pa.int64(), pa.timestamp("us")])),
        "price": pa.array(values.random(rows), pa.float32()),
        "items": _lists(values, lengths, pa.int64()),
        "kinds": _lists(values, lengths, pa.int32()),
        "shown": _lists(values, shown, pa.int64()),
        "click": _lists(values, shown, pa.float32()),
        "name": pa.array([f"name {n % 7}" for n in range(rows)]),
    }
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns),
        sink,
        row_group_size=max(rows // rng.choice([1, 2, 4]), 1),
        compression=rng.choice(CODECS),
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(["1.0", "2.0"]),
        data_page_size=rng.choice([500, 1 << 20]),
        write_page_checksum=rng.random() < 0.3,
        write_page_index=rng.random() < 0.3,
    )
    return sink.getvalue()


def damaged(seed: int) -> tuple[str, bytes]:
    """(which damage, the file)."""
    rng = random.Random(seed)
    raw = good_file(rng)
    damage = rng.choice(DAMAGES)
    return damage.__name__, damage(raw, rng)


def bits(raw: bytes, rng: random.Random) -> bytes:
    new = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 8])):
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return bytes(new)


def footer_bits(raw: bytes, rng: random.Random) -> bytes:
    new = bytearray(raw)
    size = int.from_bytes(raw[-8:-4], "little")
    for _ in range(rng.choice([1, 1, 2, 8])):
        new[-9 - rng.randrange(size)] ^= 1 << rng.randrange(8)
    return bytes(new)


def stretch(raw: bytes, rng: random.Random) -> bytes:
    begin, size = rng.randrange(len(raw)), rng.choice([1, 8, 64, 512])
    filler = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
    return (raw[:begin] + filler + raw[begin + size :])[: len(raw)]


def cut(raw: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(raw)), rng.choice([1, 4, 100, len(raw)])
    return rng.choice([raw[:at], raw[at:], raw[:at] + raw[at + size :], raw[:at] + rng.randbytes(size) + raw[at:]])


def footer_numbers(raw: bytes, rng: random.Random) -> bytes:
    footer = copy.deepcopy(footer_of(raw))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        _wrong_number(footer, rng)
    return with_footer(raw, footer)


def statistics(raw: bytes, rng: random.Random) -> bytes:
    footer = copy.deepcopy(footer_of(raw))
    one = _any_chunk(footer, rng)
    if 12 in one:
        one[12].put(rng.choice([1, 2, 5, 6]), thrift.BINARY, rng.randbytes(rng.choice([0, 1, 4, 8, 12, 300])))
    if 16 in one:
        for histogram in (2, 3):
            if histogram in one[16] and rng.random() < 0.5:
                one[16][histogram].values = [rng.choice(ENDS) for _ in range(rng.randrange(4))]
    return with_footer(raw, footer)


def page_headers(raw: bytes, rng: random.Random) -> bytes:
    footer = copy.deepcopy(footer_of(raw))
    one = _any_chunk(footer, rng)
    at = rng.choice([one[9], one.get(11) or one[9]])
    header, end = thrift.read_struct(raw, at)
    for _ in range(rng.choice([1, 1, 2])):
        _wrong_number(header, rng)
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


def _wrong_number(struct: thrift.Struct, rng: random.Random) -> None:
    _, holder, key = rng.choice(list(thrift.numbers(struct)))
    right = holder[key]
    wrong = rng.choice([right + 1, right - 1, -right, right * 1000, rng.choice(ENDS), -rng.choice(ENDS)])
    holder[key] = max(-(2**63), min(wrong, 2**63 - 1))


def _any_chunk(footer: thrift.Struct, rng: random.Random) -> thrift.Struct:
    groups = footer[4].values
    group = rng.randrange(len(groups))
    return chunk(footer, group, rng.randrange(len(groups[group][1].values)))


def _lists(values: np.random.Generator, lengths: np.ndarray, kind: pa.DataType) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    elements = pa.array(values.integers(0, 1000, offsets[-1])).cast(kind)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)


def main(folder: Path, first: int, last: int) -> None:
    """Read every file in every way."""
    from typer.testing import CliRunner

    from freescale_tools.cli import app
    from freescale_tools.console.errors import UsageError
    from freescale_tools.profile.measure import Columns, full
    from freescale_tools.scan.files import open_files
    from fsdata import FreeScaleDataLoader, ParquetSource, Schema
    from fsdata.errors import FreeScaleError

    faulthandler.enable()
    (folder / "schema.toml").write_text(SCHEMA)
    schema = Schema.from_toml(folder / "schema.toml")

    def load(path: Path, on_error: str) -> str:
        with FreeScaleDataLoader([ParquetSource(path, on_error=on_error)], schema, batch_size=64) as loader:
            return f"{sum(batch.features.stride() for batch in loader)} rows"

    def command(*arguments: object) -> str:
        done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
        lines = done.stderr.splitlines()
        errors = sum(line.startswith("error: ") for line in lines)
        found = sum(line.startswith("found: ") for line in lines)
        allowed = {0: (0,), 1: (0, 1), 2: (1,)}.get(done.exit_code, ())
        if errors + found < len(lines) or errors not in allowed:
            raise AssertionError(f"{arguments[0]}: status {done.exit_code}, {done.stderr}")
        return f"status {done.exit_code}"

    def lengths(path: Path) -> str:
        try:
            return f"{len(full(open_files([str(path)]), Columns(sequences=('items',)), paths=[]).histograms)} columns"
        except UsageError as error:
            return str(error)

    def ways(path: Path, seed: int) -> dict[str, Callable[[], str]]:
        out, read = folder / f"out-{seed}", ("--sequence", "items")
        commands = {  # the slow ones less often; what they read pages with is in `lengths`
            "check": lambda: command("check", path, "--schema", folder / "schema.toml"),
            "profile": lambda: command("profile", path, *read, "--time", "at", "--ranks", 8, "--out", out),
            "quick": lambda: command("profile", path, *read, "--quick", "--out", out),
            "collisions": lambda: command(
                "collisions", path, "--ids", "items", "--time", "at", "--ranks", 2, "--batch-size", 2, "--out", out
            ),
            "optimize": lambda: command("optimize", path, "--out", out),
        }  # fmt: skip
        every = {"check": 2, "profile": 100, "quick": 16, "collisions": 4, "optimize": 4}
        return {
            "raise": lambda: load(path, "raise"),
            "skip": lambda: load(path, "skip"),
            "lengths": lambda: lengths(path),
            **{name: run for name, run in commands.items() if seed % every[name] == 0},
        }

    def read_all(path: Path, seed: int) -> tuple[dict[str, str], list[str]]:
        """What every way of reading said, and those that failed as they should not."""
        found, faults = {}, []
        for name, way in ways(path, seed).items():
            try:
                found[name] = way()
            except FreeScaleError as error:
                found[name] = f"{type(error).__name__}: {error}"
                if name not in ("raise", "skip"):
                    faults.append(f"{name}: {traceback.format_exc()}")
            except Exception:
                faults.append(f"{name}: {traceback.format_exc()}")
        return found, faults

    path = folder / "one.parquet"
    path.write_bytes(good_file(random.Random(3)))
    _, faults = read_all(path, 0)  # everything is imported and compiled now
    assert not faults, faults[0]
    before = memory("VmRSS")
    for seed in range(first, last):
        damage, raw = damaged(seed)
        path.write_bytes(raw)
        say(seed=seed, damage=damage)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        found, faults = read_all(path, seed)
        peak_mb = (memory("VmHWM") - before) / 1024
        say(seed=seed, damage=damage, bytes=len(raw), found=found, faults=faults, peak_mb=round(peak_mb, 1))


def memory(what: str) -> int:
    """KiB of this process: VmRSS now, VmHWM at most since `clear_refs`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
