"""The command `freescale measure-links`: what the ranks of a job measure becomes hardware that steps are simulated on.

`exchange_times` measures. What was not measured comes from hardware that is known, and its source says so.
"""

import dataclasses
import json as to_json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed, UsageError, first_line
from freescale_tools.console.files import header, write_whole
from freescale_tools.console.options import numbers
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from freescale_tools.model.hardware import Hardware

_SIZES = [str(4**power) for power in range(6, 13)]  # 4 KiB to 16 MiB


def measure_links(
    out: Annotated[Path, typer.Option(help="The TOML file that `freescale profile --hardware` reads.")] = Path(
        "links.toml"
    ),
    like: Annotated[
        str, typer.Option(help="Where other parameters come from: h100-ib, b200-ib ... or a TOML file.")
    ] = "h100-ib",
    backend: Annotated[str | None, typer.Option(help="gloo or nccl. Default: nccl where there is CUDA.")] = None,
    sizes: Annotated[
        list[str] | None, typer.Option(help="Bytes that a rank gives to an exchange. Default: 4 KiB to 16 MiB.")
    ] = None,
    worlds: Annotated[
        list[str] | None, typer.Option(help="Numbers of ranks that exchange. Default: 2, 4, 8 ... and all.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Exchanges of each size; the median counts.")] = 10,
    width: Annotated[int, typer.Option(help="Rows and columns of the matrix product beside exchanges.")] = 2048,
    timeout_s: Annotated[float, typer.Option(help="How long a rank waits for the others.")] = 60,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Measure how fast ranks exchange, and how much a matrix product slows down beside it. Run it under torchrun.

    Rank 0 writes the file. Measured parameters name their source, the others are those of --like.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.model.hardware import load_hardware

        rank, world = _place()
        asked = numbers(worlds, "--worlds") or [2**power for power in range(1, world.bit_length())]
        if wrong := [one for one in asked if not 2 <= one <= world]:
            raise UsageError(
                f"--worlds {', '.join(map(str, wrong))}: 2 to {world}, the ranks of this job, are possible"
            )
        of_sizes = numbers(sizes or _SIZES, "--sizes") or []
        if repeats < 1 or width < 1 or timeout_s <= 0:
            raise UsageError("--repeats, --width and --timeout-s must be above 0")
        known = load_hardware(like)
        try:
            from freescale_tools.write.exchange_times import measured

            found = measured(
                backend,
                worlds=sorted({*asked, world}),
                sizes=of_sizes,
                repeats=repeats,
                width=width,
                timeout_s=timeout_s,
            )
        except (RuntimeError, ValueError) as error:
            raise CommandFailed(f"rank {rank}: {first_line(error)}") from error
        if rank > 0:
            return
        document = {**header("measure-links"), **found, "fits": fits(found["points"])}
        write_whole(out, as_toml(measured_hardware(found, known)))
        _show(terminal, document)
        for fit in document["fits"]:
            if fit["bytes_per_s"] is None:
                terminal.finding(
                    f"all-to-alls of {fit['ranks']} ranks took no longer for more bytes: their bandwidth is not known. "
                    "Give larger --sizes or more --repeats"
                )
        terminal.say(f"written: {out}")
        terminal.result(document)


def _place() -> tuple[int, int]:
    """Rank and world size that torchrun gave. Raises UsageError without them."""
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        world = 0
    if world < 2:
        raise UsageError(
            "links are measured between ranks: start 2 or more with "
            "`torchrun --nproc-per-node 8 --no-python freescale measure-links`"
        )
    return rank, world


def fits(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of all-to-alls {ranks, bytes, seconds}: {ranks, latency_s, bytes_per_s, error} by number of ranks.

    Bytes are those that a rank gives, its own part included.
    """
    import numpy as np

    from freescale_tools.calibrate.fits import latency_and_inverse, over, relative_error

    found = []
    for ranks in sorted({point["ranks"] for point in points}):
        size, seconds = np.array([(p["bytes"], p["seconds"]) for p in points if p["ranks"] == ranks], np.float64).T
        latency, inverse = latency_and_inverse(size, seconds).tolist()
        error = relative_error(size, seconds, latency, inverse)
        found.append({"ranks": ranks, "latency_s": latency, "bytes_per_s": over(inverse), "error": error})
    return found


def measured_hardware(measured: Mapping[str, Any], like: "Hardware") -> "Hardware":
    """`like` with everything that was `measured`, which is as `exchange_times.measured` gives it.

    Bandwidths are what exchanges reach, so `exchange_efficiency` becomes 1 and other bandwidths are multiplied with
    that of `like`.
    """
    import numpy as np

    from freescale_tools.calibrate.fits import line
    from freescale_tools.model.hardware import ALL_TO_ALLS

    where, ranks_per_host, found = measured["where"], measured["ranks_per_host"], fits(measured["points"])

    def exchanges(ranks: int) -> str:
        return f"measured: {where}, {ALL_TO_ALLS} {ranks} ranks"

    given: dict[str, tuple[float, str]] = {
        link: (
            getattr(like, link) * like.exchange_efficiency,
            f"{like.name}, times its exchange_efficiency: {like.sources[link]}; {like.sources['exchange_efficiency']}",
        )
        for link in ("nvlink", "pcie", "network")
    }
    fitted = [one for one in found if one["bytes_per_s"]]
    inside = [one for one in fitted if one["ranks"] <= ranks_per_host]
    across = [one for one in fitted if one["ranks"] > ranks_per_host]
    for link, of, stay in (("nvlink", inside, 1), ("network", across, ranks_per_host)):
        if of:
            ranks = of[-1]["ranks"]
            crossing = of[-1]["bytes_per_s"] * (ranks - stay) / ranks / 1e9
            given[link] = crossing, exchanges(ranks)
    others = np.array([one["ranks"] - 1 for one in found], np.float64)
    first, each = line(others, np.array([one["latency_s"] for one in found])).tolist()
    within = "" if len(found) > 1 else "; one number of ranks: within exchange_latency"
    speed = min(given["nvlink"][0], given["network"][0] * ranks_per_host if across else math.inf)
    ranks = found[-1]["ranks"]
    reduced, product = measured["all_reduce"], measured["product"]
    reached = 2 * reduced["bytes"] * (ranks - 1) / ranks / reduced["seconds"] / 1e9
    given |= {
        "gpus_per_host": (ranks_per_host, f"measured: {where}"),
        "gpus_per_nvlink": (ranks_per_host, f"measured: {where}"),
        "exchange_efficiency": (1.0, f"measured: {where}, inside the bandwidths"),
        "exchange_latency": (1e6 * first, exchanges(ranks)),
        "peer_latency": (1e6 * each, exchanges(ranks) + within),
        "allreduce_efficiency": (
            float(np.clip(reached / speed, 0.01, 1.0)),
            f"measured: all-reduce of {reduced['bytes']:,} bytes, {where}",
        ),
        "contention": (
            float(np.clip(product["beside_s"] / product["alone_s"] - 1, 0.0, 1.0)),
            f"measured: matrix product beside all-to-alls, {where}",
        ),
    }
    values = {field: value for field, (value, _) in given.items()}
    sources = {**like.sources, **{field: source for field, (_, source) in given.items()}}
    return dataclasses.replace(like, name=f"measured on {where}", sources=sources, **values)


def as_toml(hardware: "Hardware") -> str:
    """The text of a file that `load_hardware` reads back."""
    from freescale_tools.model.hardware import parameters

    lines = [f"name = {to_json.dumps(hardware.name)}"]
    for one in parameters(hardware):
        value = one["value"] if isinstance(one["value"], int) else float(one["value"])
        lines += [
            f"\n[{one['name']}]",
            f"value = {value!r}",
            *(f"{key} = {to_json.dumps(one[key])}" for key in ("unit", "source")),
        ]
    return "\n".join(lines) + "\n"


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    product = document["product"]
    terminal.table(
        f"All-to-alls: {document['where']}",
        ["ranks", "bytes a rank gives", "ms", "MB/s"],
        [[p["ranks"], p["bytes"], 1e3 * p["seconds"], p["bytes"] / p["seconds"] / 1e6] for p in document["points"]],
    )
    rows = []
    for fit in document["fits"]:
        speed = fit["bytes_per_s"] and fit["bytes_per_s"] / 1e6
        rows.append([fit["ranks"], 1e3 * fit["latency_s"], speed, f"{fit['error']:.0%}"])
    note = (
        f"A product of [{product['width']}, {product['width']}] matrices takes {1e3 * product['alone_s']:.3g} ms alone "
        f"and {1e3 * product['beside_s']:.3g} ms beside exchanges."
    )
    columns = ["ranks", "latency ms", "MB/s", "median error"]
    terminal.table("Seconds = latency + bytes / bandwidth", columns, rows, notes=[note])
