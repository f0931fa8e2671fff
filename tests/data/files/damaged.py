"""Parquet files damaged at random: every seed is one file and one damage.

`python damaged.py files FOLDER FIRST LAST` lets the loader and the commands read the files of these seeds, and prints
one JSON line before and one after each. `python damaged.py pages FOLDER FIRST LAST` damages pages only, and compares
what both decoders read.
"""

import ctypes
import faulthandler
import io
import json
import mmap
import random
import re
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # as a program it finds only its own folder

import compact_thrift as thrift
import numpy as np
import random_files
from compact_thrift import Struct
from footers import footer_of, with_footer

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


def damaged(seed: int, pages: bool = False) -> tuple[str, bytes]:
    """(which damage, the file)."""
    rng = random.Random(seed)
    numbers, sink = np.random.default_rng(seed), io.BytesIO()
    lengths, rows = rng.choice(["short", "short", "equal", "long"]), rng.choice([1, 3, 20, 90, 300])
    holes = pages and seed % 3 == 1
    made = random_files.columns(numbers, rows, nulls=pages, lengths=lengths, holes=holes)
    options = {
        "compression": rng.choice(["none"] * 6 + [*random_files.CODECS, "brotli"]),
        "write_page_checksum": rng.random() < 0.2,
        "write_page_index": rng.random() < 0.3,
        "data_page_size": rng.choice([8, 100, 1 << 20]),  # at 1 there are pages of no values, where pyarrow stops
    }
    random_files.write(sink, made, numbers, **options)
    if seed % 16 == 0:
        return "none", sink.getvalue()
    damage = rng.choice(OF_PAGES if pages else OF_FILES + OF_PAGES)
    return damage.__name__, damage(sink.getvalue(), rng)


def bits(raw: bytes, rng: random.Random) -> bytes:
    new = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 8]) if raw else 0):
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return bytes(new)


def footer_bits(raw: bytes, rng: random.Random) -> bytes:
    size = 8 + int.from_bytes(raw[-8:-4], "little")
    return raw[:-size] + bits(raw[-size:-8], rng) + raw[-8:]


def splice(raw: bytes, rng: random.Random) -> bytes:
    """Some bytes become others, more or fewer."""
    size = rng.choice([1, 2, 8, 64, 512, len(raw)])
    begin = max(rng.choice([0, len(raw) - size, rng.randrange(len(raw) + 1)]), 0)
    filler = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size), b""])
    return raw[:begin] + filler + raw[begin + rng.choice([0, size, size]) :]


def footer_numbers(raw: bytes, rng: random.Random) -> bytes:
    footer = footer_of(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        wrong_number(footer, rng)
    return with_footer(raw, footer)


def statistics(raw: bytes, rng: random.Random) -> bytes:
    footer = footer_of(raw)
    chunk = rng.choice(_chunks(footer))
    if 12 in chunk:
        chunk[12].put(rng.choice([1, 2, 5, 6]), thrift.BINARY, rng.randbytes(rng.choice([0, 1, 4, 8, 12, 300])))
    for histogram in (2, 3):
        if histogram in chunk.get(16, ()) and rng.random() < 0.5:
            chunk[16][histogram].values = [rng.choice(ENDS) for _ in range(rng.randrange(4))]
    return with_footer(raw, footer)


def page_headers(raw: bytes, rng: random.Random) -> bytes:
    """Numbers, kinds, or bytes that are no header."""

    def change(header: Struct, body: bytes, chunk: Struct) -> bytes:
        inner = header.get(header[1] + 5)
        what = rng.choice(["numbers", "numbers", "encoding", "kind", "values", "bytes"])
        if what == "numbers":
            for _ in range(rng.choice([1, 1, 2])):
                wrong_number(header, rng)
        elif what == "encoding":
            _encode(header, rng.choice([0, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1]))
        elif what == "kind":
            header[1] = rng.choice([0, 1, 2, 3, 4])
            header.put(header[1] + 5, thrift.STRUCT, inner)
        elif what == "values":  # of the chunk, too: the damage that says least
            some = rng.choice([1, 2, 8, 9, 1000, 1 << 20, 1 << 31, 1 << 40])
            chunk[5] += some
            inner[1] += some
        new = bytearray(thrift.write_struct(header))
        if what == "bytes":
            long_list, long_text = b"\xf9\xf0" + b"\xff" * 8 + b"\x01", b"\xf8" + b"\xff" * 4 + b"\x0f"
            at = rng.randrange(len(new))
            garbage = [long_list, b"\xfc" * 80, b"\x19\x19\x19", long_text, rng.randbytes(1), rng.randbytes(20)]
            new[at : at + rng.choice([0, 1, 5])] = rng.choice(garbage)
        return bytes(new) + body

    return _with_page(raw, rng, change)


def page_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Anywhere, or of levels, widths and the heads of blocks; the header says how many there are."""

    def change(header: Struct, body: bytes, _: Struct) -> bytes:
        at = rng.choice([0, 1, 4, 5, 6, 8, rng.randrange(len(body) + 1)])
        end = at + rng.choice([8, len(body)])
        varint = thrift.varint(max(rng.choice(ENDS) + rng.choice([-1, 0, 1]), 0) << 1 | rng.randrange(2))
        varint = rng.choice([varint, b"\xff" * rng.choice([5, 9, 10, 20]) + b"\1", b"\x80" * 9 + b"\1"])
        giant = varint + body[at + rng.choice([0, 1, len(varint)]) :]
        flipped = bits(body[at:end], rng) + body[end:]
        new = rng.choice([flipped, flipped, flipped, splice(body[at:], rng), giant])
        return _resized(header, body[:at] + new)

    return _with_page(raw, rng, change)


def page_values(raw: bytes, rng: random.Random) -> bytes:
    """What follows the levels is positions in any runs of any width, or deltas in blocks of any size."""

    def change(header: Struct, body: bytes, _: Struct) -> bytes:
        if rng.random() < 0.6:
            made = bytearray([rng.choice([0, 1, 2, 3, 7, 8, 9, 16, 25, 31, 32, 33, 255])])
            for _ in range(rng.choice([1, 2, 10])):
                groups, value = (
                    rng.choice([0, 1, 2, 8, 63]),
                    rng.choice([b"\0", b"\1", bytes(2), bytes(4), b"\xff" * 4]),
                )
                packed = rng.choice([bytes, rng.randbytes])(rng.choice([0, 1, groups, groups * 3]))
                repeated = bytes([rng.randrange(64) << 1]) + value
                made += rng.choice([repeated, bytes([groups << 1 | 1]) + packed])
        else:
            block, parts = rng.choice([(128, 4), (128, 1), (256, 2), (1 << 20, 4), (0, 0), (128, 0), (64, 2), (1, 1)])
            head = (block, parts, rng.choice([0, 1, 20, 300, 1 << 40]), rng.choice([0, 5, (1 << 64) - 1]))
            made = bytearray(b"".join(map(thrift.varint, head)))
            for _ in range(rng.randrange(4)):
                widths = bytes(rng.choice([0, 1, 7, 31, 32, 33, 57, 58, 63, 64, 65, 255]) for _ in range(parts % 8))
                made += bytes([rng.choice([0, 1, 126])]) + widths
                made += rng.randbytes(rng.choice([0, 3, sum(widths) * 4, sum(widths) * 4]))
        _encode(header, rng.choice([8, 8, 2, 5, 5]))
        levels = sum(header.get(8, {}).get(number, 0) for number in (5, 6))
        return _resized(header, body[: rng.choice([0, levels, levels, 6, 8])] + made)

    return _with_page(raw, rng, change)


def page_order(raw: bytes, rng: random.Random) -> bytes:
    """A page is missing, there twice, or without values."""

    def change(header: Struct, body: bytes, _: Struct) -> bytes:
        page = thrift.write_struct(header) + body
        empty = thrift.read_struct(page)[0]
        empty[empty[1] + 5][1] = 0
        return rng.choice([b"", page + page, _resized(empty, b"") + page, page + _resized(empty, body)])

    return _with_page(raw, rng, change)


OF_FILES = (bits, footer_bits, splice, splice, footer_numbers, footer_numbers, statistics)
OF_PAGES = (page_headers, page_headers, *(page_bytes,) * 5, page_values, page_values, page_order)


def wrong_number(struct: Struct, rng: random.Random) -> None:
    _, holder, key = rng.choice(list(thrift.numbers(struct)))
    right = holder[key]
    wrong = rng.choice([right + 1, right - 1, right + 8, -right, right * 1000, rng.choice(ENDS), -rng.choice(ENDS)])
    holder[key] = max(-(2**63), min(wrong, 2**63 - 1))


def _encode(header: Struct, encoding: int) -> None:
    header[header[1] + 5].put(4 if header[1] == 3 else 2, thrift.I32, encoding)


def _resized(header: Struct, body: bytes) -> bytes:
    header[2] = header[3] = len(body)
    return thrift.write_struct(header) + body


def _chunks(footer: Struct) -> list[Struct]:
    return [column[3] for group in footer[4].values for column in group[1].values]


def _with_page(raw: bytes, rng: random.Random, change: Callable[[Struct, bytes, Struct], bytes]) -> bytes:
    """The file with another page of lists, as pyarrow alone decodes others. `change` gets its header, its bytes and its
    chunk, and says what stands there now."""
    footer = footer_of(raw)
    while (chunk := rng.choice(_chunks(footer)))[3].values[0].decode() not in random_files.LISTS:
        pass
    pages = list(_pages(raw, chunk))
    at, begin, end, header = rng.choice([pages[0], pages[-1], rng.choice(pages)])
    new = change(header, raw[begin:end], chunk)
    moved = len(new) - (end - at)
    chunk[6], chunk[7] = chunk[6] + max(moved, 0), chunk[7] + moved
    for other in _chunks(footer):
        for place in (9, 11):
            if other.get(place, 0) > at:
                other[place] += moved
    return with_footer(raw[:at] + new + raw[end:], footer)


def _pages(raw: bytes, chunk: Struct) -> Any:
    """(where the header begins, where its bytes begin and end, the header) of every page."""
    at = min(filter(None, (chunk[9], chunk.get(11))))
    stop = at + chunk[7]
    while at < stop:
        header, begin = thrift.read_struct(raw, at)
        yield at, begin, begin + header[3], header
        at = begin + header[3]


def read_with(path: Path, decoder: str) -> tuple[str, object]:
    """("rows", all of them), or the name of the error and what it says."""
    from data_kit import read

    from fsdata import ParquetSource
    from fsdata.errors import FreeScaleError

    try:
        given = ParquetSource(path, defaults=random_files.DEFAULTS, decoder=decoder)
        return "rows", read(given, random_files.schema(max_length=50))
    except FreeScaleError as error:
        return type(error).__name__, str(error)


def fault(ours: tuple[str, object], arrows: tuple[str, object], raw: bytes) -> str | None:
    """What is wrong with our answer, if something is."""
    if ours[0] == "CorruptFileError" or ours == arrows or (ours[0] == arrows[0] == "DataError"):
        return None
    return None if stops_early(arrows, raw) else f"pyarrow: {str(arrows)[:300]}; pages: {str(ours)[:300]}"


def stops_early(said: tuple[str, object], raw: bytes) -> bool:
    """Whether pyarrow read it, and missed rows: where pages have no values it stops reading lists."""
    if not re.search("rows where the footer says|do not have the same size", str(said[1])):
        return False
    pages = [header for chunk in _chunks(footer_of(raw)) for _, _, _, header in _pages(raw, chunk)]
    return any(header.get(header[1] + 5, {}).get(1, 0) <= 0 for header in pages)


def by_both_decoders(path: Path, seed: int) -> tuple[dict[str, str], list[str]]:
    """What each said, and what is wrong with that."""
    arrows, ours, faults = read_with(path, "pyarrow"), ("", ""), []
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is that of our decoder
    try:
        ours = read_with(path, "pages")
        raw = path.read_bytes()
        faults += filter(None, [fault(ours, arrows, raw)])
        if seed % 16 == 0 and ours[0] != "rows" and not stops_early(ours, raw):
            faults.append(f"not damaged, but {ours}")
    except Exception:
        faults.append(traceback.format_exc())
    return {"pages": ours[0], "pyarrow": arrows[0]}, faults


def in_every_way(path: Path, seed: int) -> tuple[dict[str, str], list[str]]:
    """What the loader and the commands said, and those that failed as they should not."""
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
            return f"{len(full(open_files([str(path)]), Columns(sequences=('items',)), paths=[])['sequences'])} columns"
        except UsageError as error:
            return str(error)

    read, out = ("--sequence", "items"), ("--out", path.with_name(f"out-{seed}"))
    collide = ("--ids", "items", "--time", "at", "--ranks", 2, "--batch-size", 2)
    ways: dict[str, tuple[int, Callable[[], str]]] = {  # every how many files
        "raise": (1, lambda: load("raise")),
        "skip": (1, lambda: load("skip")),
        "lengths": (1, lengths),  # what the slow commands read pages with
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


def guard_memory() -> None:
    """From now on bytes of pages stand before memory that cannot be read: reading beyond them ends the process."""
    from fsdata.decode import reused_buffers

    protect = ctypes.CDLL(None, use_errno=True).mprotect

    def take(_: reused_buffers.Pool, size: int) -> reused_buffers.Lease:
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = np.frombuffer(mmap.mmap(-1, room + mmap.PAGESIZE), np.uint8)
        end = memory.ctypes.data + room
        assert protect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
        return reused_buffers.Lease(reused_buffers._Buffer(size, end - size, memory), deque())

    reused_buffers.Pool.take = take


def main(what: str, folder: Path, first: int, last: int) -> None:
    faulthandler.enable()
    read = in_every_way if what == "files" else by_both_decoders
    if what == "pages":
        warnings.simplefilter("error")
        guard_memory()
    path = folder / "one.parquet"
    path.write_bytes(damaged(0)[1])
    _, faults = read(path, 0)  # everything is imported and compiled now
    assert not faults, faults[0]
    before = _memory("VmRSS")
    for seed in range(first, last):
        damage, raw = damaged(seed, pages=what == "pages")
        path.write_bytes(raw)
        print(json.dumps({"seed": seed, "damage": damage}), flush=True)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        found, faults = read(path, seed)
        said = {"seed": seed, "damage": damage, "found": found, "faults": faults}
        print(json.dumps(said | {"peak_mb": (_memory("VmHWM") - before) / 1024}), flush=True)


def _memory(what: str) -> int:
    """KiB of this process: VmRSS now, VmHWM at most since `clear_refs`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
