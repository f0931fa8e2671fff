"""The command `freescale measure-links`: joins the ranks that torchrun started, measures, and writes the file."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed, UsageError, first_line
from freescale_tools.console.files import header, write_whole
from freescale_tools.console.options import numbers
from freescale_tools.console.terminal import Terminal

_SIZES = [str(4**power) for power in range(6, 13)]  # 4 KiB to 16 MiB


def measure_links(
    out: Annotated[Path, typer.Option(help="The TOML file that `freescale simulate --hardware` reads.")] = Path(
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

    torchrun --nproc-per-node 8 --no-python freescale measure-links --out links.toml

    Rank 0 writes the file; what was measured names its source, other parameters are those of --like.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.model.hardware import load_hardware

        given = numbers(sizes or _SIZES, "--sizes") or []
        asked = numbers(worlds, "--worlds")
        if repeats < 1 or width < 1 or timeout_s <= 0:
            raise UsageError("--repeats, --width and --timeout-s must be above 0")
        rank, world = _place()
        document = _measured(load_hardware(like), backend, given, _worlds(asked, world), repeats, width, timeout_s)
        if rank == 0:
            write_whole(out, document.pop("toml"))
            _show(terminal, document)
            for fit in document["fits"]:
                if fit["bytes_per_s"] is None:
                    terminal.finding(
                        f"all-to-alls of {fit['ranks']} ranks took no longer for more bytes: their bandwidth is not "
                        "known. Give larger --sizes or more --repeats"
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


def _worlds(asked: list[int] | None, world: int) -> list[int]:
    if asked is None:
        return sorted({*(2**power for power in range(1, world.bit_length()) if 2**power <= world), world})
    if wrong := [one for one in asked if not 2 <= one <= world]:
        raise UsageError(f"--worlds {', '.join(map(str, wrong))}: 2 to {world}, the ranks of this job, are possible")
    return sorted({*asked, world})


def _measured(
    like: Any, backend: str | None, sizes: list[int], worlds: list[int], repeats: int, width: int, timeout_s: float
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from freescale_tools.console.ranks import join_ranks
    from freescale_tools.simulate.links import exchange_times
    from freescale_tools.simulate.links.hardware_file import as_toml, fits, measured_hardware

    chosen = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if chosen == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        join_ranks(chosen, timeout_s=timeout_s)
        try:
            points = exchange_times.all_to_alls(device, worlds, sizes, repeats=repeats)
            reduce_s = exchange_times.all_reduce(device, sizes[-1], repeats=repeats)
            alone_s, beside_s = exchange_times.slowdown(device, width=width, repeats=repeats)
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        raise CommandFailed(f"rank {os.environ['RANK']}: {first_line(error)}") from error
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", worlds[-1]))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    where = f"{worlds[-1]} ranks, {per_host} a host, {chosen}, {name}"
    hardware = measured_hardware(
        points, like, name=f"measured on {where}", ranks_per_host=per_host, reduce_bytes=sizes[-1], reduce_s=reduce_s,
        alone_s=alone_s, beside_s=beside_s, where=where,
    )  # fmt: skip
    return {
        **header("measure-links"), "where": where, "points": points,
        "fits": fits(points), "all_reduce": {"bytes": sizes[-1], "seconds": reduce_s},
        "product": {"width": width, "alone_s": alone_s, "beside_s": beside_s}, "toml": as_toml(hardware),
    }  # fmt: skip


def _show(terminal: Terminal, document: dict[str, Any]) -> None:
    product = document["product"]
    terminal.table(
        f"All-to-alls: {document['where']}",
        ["ranks", "bytes a rank gives", "ms", "MB/s"],
        [[p["ranks"], p["bytes"], 1e3 * p["seconds"], p["bytes"] / p["seconds"] / 1e6] for p in document["points"]],
    )
    terminal.table(
        "Seconds = latency + bytes / bandwidth",
        ["ranks", "latency ms", "MB/s", "median error"],
        [
            [
                fit["ranks"],
                1e3 * fit["latency_s"],
                fit["bytes_per_s"] and fit["bytes_per_s"] / 1e6,
                f"{fit['error']:.0%}",
            ]
            for fit in document["fits"]
        ],
        notes=[
            f"A product of [{product['width']}, {product['width']}] matrices takes {1e3 * product['alone_s']:.3g} ms "
            f"alone and {1e3 * product['beside_s']:.3g} ms beside exchanges."
        ],
    )
