"""The first table of the README, and that of the home page."""

from figures import balancing, communication, loading
from figures.records import record, table

_HEADER = ["what is measured", "without FreeScale", "with FreeScale", "command"]


def gains() -> None:
    table(_HEADER, _rows())


def three() -> None:
    """Waiting for the slowest rank, waiting for communication, loading."""
    rows = _rows()
    table(_HEADER, [rows[0], rows[2], rows[-1]])


def _rows() -> list[list[str]]:
    stragglers, demo, exposed, parts, histories, loader = (
        record(name) for name in ("stragglers", "demo", "exposed", "exposed_parts", "histories", "loader")
    )
    most = max(row["% of ids"] for row in parts.rows)
    in_parts = {row["mode"]: row["(1) exposed ms"] for row in parts.where(**{"% of ids": most})}
    left = balancing.paper_like(stragglers)
    trained = {row["run"]: row for row in demo.where(data="synthetic", links="memory")}
    waits = [
        communication.exposed_ms(exposed, "400 ms", mode) for mode in ("plain loop", "TorchRec SparseDist", "fscomm")
    ]
    in_rows, once = (histories.row(stored=way)["CPU ms / 1,000"] for way in ("in every row", "once, as of the request"))
    least = min(loading.others(loader), key=lambda row: row["CPU / raw"])
    ours = loader.row(way="FreeScale", batch=512)
    return [
        [
            "time that ranks wait for stragglers: 64 ranks, lengths as in the paper, simulated",
            f"{left['none']:.1f} % (the paper's zig-zag: {left['fbs']:.1f} %)",
            f"{left['fbs+swap']:.3f} %",
            f"`{stragglers.command}`",
        ],
        [
            "the same, trained: 2 processes on 2 CPU cores, synthetic data",
            f"{trained['plain']['straggler %']:.1f} %",
            f"{trained['balanced']['straggler %']:.1f} %",
            "`make demo`",
        ],
        [
            "exposed communication per step: 4 ranks, links of 200 Mbit, 400 ms of compute, 12 % collisions",
            f"{waits[0]:.0f} ms; TrainPipelineSparseDist {waits[1]:.0f} ms",
            f"{waits[2]:.0f} ms",
            f"`{exposed.command}`",
        ],
        [
            f"the same with {most:.0f} % collisions, steps computed in 4 parts",
            f"{in_parts['plain loop']:.0f} ms; TrainPipelineSparseDist {in_parts['TorchRec SparseDist']:.0f} ms",
            f"{in_parts['fscomm in 4 parts']:.0f} ms",
            f"`{parts.command}`",
        ],
        [
            "CPU time of loading 1,000 requests with up to 4,096 events, from a public event log",
            f"{in_rows:.1f} ms, histories in every row",
            f"{once:.1f} ms, histories stored once",
            f"`{histories.command}`",
        ],
        [
            "CPU time of loading, as a multiple of raw decoding by pyarrow",
            f"{least['CPU / raw']:.2f} ({least['way']}: the least of {len(loading.others(loader))} other loaders)",
            f"{ours['CPU / raw']:.2f}",
            f"`{loader.command}`",
        ],
    ]
