"""What `make gpu` found."""

from common.table import RESULTS, read_record

from figures.records import Record, listed, say, short, table


def _of_part(part: str) -> Record:
    """The record of the benchmark that a part of `make gpu` has run."""
    steps = read_record(f"gpu/{part}")["steps"]
    (found,) = (step["found"][part] for step in steps if part in step["found"])
    return Record(part, found | {"command": f'make gpu PARTS="{part}"'})


def parts() -> None:
    """What each part of `make gpu` has asked, and how far it came."""
    documents = [read_record(f"gpu/{path.stem}") for path in sorted((RESULTS / "gpu").glob("*.json"))]
    rows = [[f"`{found['part']}`", found["asked"], found["reached"], len(found["failures"])] for found in documents]
    table(["part", "asks", "reached", "failures"], rows)


def feeding() -> None:
    fed = _of_part("feeding")
    rows = [
        [
            row["threads"] or "no loader",
            row["page-locked"],
            row["products"],
            f"{row['samples/s']:,.0f}",
            f"{row['waits, %']:.2g}",
            short(1e3 * row["first s"]) if row["threads"] else None,
        ]
        for row in fed.rows
        if not row["products"] or row["threads"] <= 1 or row["products"] == 100  # more threads change nothing there
    ]
    header = ["decoding threads", "page-locked", "products", "samples/s", "the GPU waits, %", "first batch, ms"]
    table(header, rows, fed)


def kernels() -> None:
    """Figure 7 of the paper."""
    found = _of_part("kernels")
    ways = ("eager: loop over ranks", "eager: one index", "dispatch", "combine", "copy alone")
    rows = [[row["ranks"], *(short(row[way]) for way in ways)] for row in found.where(device="cuda")]
    table(["ranks", "PyTorch, a loop over ranks", "PyTorch, one index", *ways[2:4], "a plan used again"], rows, found)
    say(
        "The paper has 3 and 48.9 ms for PyTorch at 32 and 512 ranks, 0.1 and 0.6 ms for its kernel. Our figures are "
        "those of an earlier planning, which launched some twenty kernels of torch: most of the time was the host's. "
        "Now planning is one launch and the copy another, which has not been measured on a GPU. That is one launch "
        "more than a plan used again: about 0.1 ms is expected at 512 ranks."
    )


def contention() -> None:
    """Figure 10 of the paper, as far as one GPU shows it."""
    found = _of_part("contention")
    rows = [
        [f"{row['compute']}, {row['tokens']:,}", row["beside"], f"{row['slower, %']:.0f}", short(row["moved, GB/s"])]
        for row in found.rows
        if row["beside"] != "copy-engine"  # of ranks that share a GPU, it is no copy engine
    ]
    table(["compute, tokens", "beside", "slower, %", "moved, GB/s"], rows, found)
    least = min(row["slower, %"] for row in found.rows)
    say(f"The clock of the GPU varies: the same compute, repeated, may take {-least:.0f} % more or less.")


def torchrec() -> None:
    """How many loops with TorchRec's tables were equal to the bit."""
    found = read_record("gpu_torchrec")
    kernels = [case for case in found["cases"] if case["asked"] == "kernels of fbgemm"]
    loops = [case for case in found["cases"] if case not in kernels]
    by = {
        each["transport"]: [p for p in found["programs"] if p["transport"] == each["transport"]]
        for each in found["programs"]
    }
    equal = sum(case["equal"] for case in loops)
    programs = ", ".join(f"{sum(not p['differ'] for p in of)} of {len(of)} over `{name}`" for name, of in by.items())
    means = found["means"]["rows"].values()
    versions = found["measured_with"]
    say(
        f"TorchRec {versions['torchrec']} with fbgemm {versions['fbgemm_gpu']}, 1 and 2 processes on one H200: "
        f"{equal} of {len(loops)} loops were equal to the bit in every table, state and output, and so were these "
        f"training programs: {programs}. Updates in parts, by threads and streams of their own, were those of fbgemm's "
        f"kernel in {sum(case['equal'] for case in kernels)} of {len(kernels)} cases; those of means, scaled before, "
        f"in {sum(row['scaled, parts'] for row in means)} of {len(means)}."
    )


def probes() -> None:
    steps = read_record("gpu/probes")["steps"]
    checks = [check for step in steps for found in step["found"].values() for check in found["checks"]]
    listed([f"{check['name']}: {check['told']}" for check in checks if check["told"]])
