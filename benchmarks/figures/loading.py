"""Loaders against raw decoding, flat rows, optimized files."""

from figures.records import Record, listed, record, table

_TITLES = {
    "FreeScale": "FreeScale",
    "FreeScale shuffled": "FreeScale, whole rows shuffled over 4 row groups",
    "HF datasets, streaming, arrow": "HF datasets, streaming, arrow format (not shuffled)",
    "HF datasets, arrow cache": "HF datasets, arrow cache, all rows shuffled (the conversion not counted)",
    "torchdata.nodes, Table.take": "torchdata.nodes with `Table.take` (rows shuffled in a row group)",
    "TorchEasyRec-style": "TorchEasyRec-style (whole batches shuffled)",
    "TorchEasyRec-style, 2 workers": "the same, 2 workers",
    "DataLoader, numpy rows": "DataLoader with numpy rows (rows shuffled in a row group)",
    "DataLoader, numpy rows, 2 workers": "the same, 2 workers",
}
SHORT = {
    "FreeScale": "FreeScale",
    "FreeScale shuffled": "FreeScale, shuffled",
    "HF datasets, streaming, arrow": "HF datasets, streaming",
    "TorchEasyRec-style": "TorchEasyRec-style",
    "torchdata.nodes, Table.take": "torchdata.nodes",
    "DataLoader, numpy rows": "DataLoader",
    "HF datasets, arrow cache": "HF datasets, arrow cache",
    "TorchEasyRec-style, 2 workers": "TorchEasyRec-style, 2 workers",
    "DataLoader, numpy rows, 2 workers": "DataLoader, 2 workers",
}
"""Ways to load, as a picture names them."""


def others(loader: Record) -> list[dict]:
    """Rows of the loaders that are not FreeScale's."""
    return [loader.row(way=name) for name in _TITLES if not name.startswith("FreeScale")]


def ways(name: str = "loader") -> None:
    loader = record(name)
    found = [(title, loader.where(way=way)) for way, title in _TITLES.items()]
    rows = [(title, each[0]) for title, each in found if each]
    raw = loader.row(way="raw decode")
    rows.append((f"raw decode, {raw['CPU s']:.1f} CPU seconds", raw))
    table(
        ["", "CPU / raw", "wall / raw", "peak memory over imports"],
        [
            [title, f"{row['CPU / raw']:.2f}", f"{row['wall / raw']:.2f}", f"{row['peak MiB']:,} MiB"]
            for title, row in rows
        ],
        loader,
    )


def flat() -> None:
    flat = record("flat")
    table(
        ["rows", "raw, million rows a CPU second", "in order", "shuffled", "twenty lines of pyarrow and numpy"],
        [
            [
                row["shape"],
                f"{row['raw, M rows/CPU s']:.2f}",
                *(f"{row[name]:.2f}" for name in ("in order / raw", "shuffled / raw", "twenty lines / raw")),
            ]
            for row in flat.rows
            if row["raw, M rows/CPU s"] is not None
        ],
        flat,
    )


def small_batches() -> None:
    loader = record("loader")
    plain, shuffled = (loader.row(way=name, batch=128) for name in ("FreeScale", "FreeScale shuffled"))
    first, later = (loader.row(way=name, batch=512)["first batch s"] for name in ("FreeScale", "FreeScale shuffled"))
    texts = [
        f"With batches of 128 FreeScale takes {plain['CPU / raw']:.2f} (shuffled {shuffled['CPU / raw']:.2f}) times "
        "raw decode.",
        f"The first batch comes after {first:.2f} s (shuffled {later:.2f} s), once kernels are compiled.",
    ]
    listed(texts, loader)


def optimized() -> None:
    optimize = record("optimize")
    table(
        ["columns", "decoding, of that before", "size, of that before"],
        [
            [
                row["columns"],
                f"{row['after / before']:.2f} [{row['least']:.2f}..{row['most']:.2f}]",
                f"{row['MB after'] / row['MB before']:.2f}",
            ]
            for row in optimize.rows
        ],
        optimize,
    )
