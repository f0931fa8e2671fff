"""Loaders against raw decoding, flat rows, optimized files."""

from figures.records import Record, listed, record, table_of

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
    columns = {
        "": "{title}",
        "CPU / raw": "{CPU / raw:.2f}",
        "wall / raw": "{wall / raw:.2f}",
        "peak memory over imports": "{peak MiB:,} MiB",
    }
    table_of([row | {"title": title} for title, row in rows], columns, loader)


def flat() -> None:
    flat = record("flat")
    columns = {
        "rows": "{shape}",
        "raw, million rows a CPU second": "{raw, M rows/CPU s:.2f}",
        "in order": "{in order / raw:.2f}",
        "shuffled": "{shuffled / raw:.2f}",
        "twenty lines of pyarrow and numpy": "{twenty lines / raw:.2f}",
    }
    table_of(flat.rows, columns, flat)


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
    columns = {
        "columns": "{columns}",
        "decoding, of that before": "{after / before:.2f} [{least:.2f}..{most:.2f}]",
        "size, of that before": "{size:.2f}",
    }
    table_of([row | {"size": row["MB after"] / row["MB before"]} for row in optimize.rows], columns, optimize)
