"""Object stores."""

from figures.records import listed, percent, record, table


def object_store() -> None:
    store = record("object_store")
    small = [row for row in store.rows if not row["from"].startswith("128 MB")]
    rows = []
    for row in small:
        local = row["from"] == "local files"
        title = row["from"] + {"-": "", "0": ", `read_ahead=0`"}.get(row["read ahead"], "")
        span = f"{row['of local']:.2f} [{row['range']}]"
        rows.append([
            title.replace("100 ms", "100 ms a request"),
            1 if local else span,
            f"{row['first batch s']:.1f}",
            f"{row['CPU s']:.1f}",
            None if local else f"{row['CPU s of the store']:.1f}",
            f"{row['MB held at most']:.0f}" if row["MB held at most"] else None,
        ])  # fmt: skip
    table(
        [
            "",
            "rows/s, of local files",
            "first batch s",
            "CPU s of the loader",
            "CPU s of endpoint and proxy",
            "peak MB of read-ahead",
        ],
        rows,
        store,
    )


def read_ahead() -> None:
    store = record("object_store")
    near, far = (store.row(**{"from": way, "read ahead": "256MB"}) for way in ("S3, no latency", "S3, 100 ms"))
    alone = store.row(**{"from": "S3, 100 ms", "read ahead": "0"})
    large = [store.row(**{"from": "128 MB row groups, S3, 100 ms", "read ahead": bound}) for bound in ("256MB", "64MB")]
    listed([
        f"100 ms cost {percent(max(1 - far['rows/s'] / near['rows/s'], 0))} of the throughput without latency; without "
        f"read-ahead they cost {percent(1 - alone['rows/s'] / near['rows/s'])}.",
        f'The bound holds. With row groups of 128 MB the peak was {large[0]["MB held at most"]:.0f} MB under '
        '`read_ahead="256MB"`, and one row group under `"64MB"`. Decoding these is so fast that the endpoint, at '
        f"{large[0]['of local']:.2f} of the local throughput, is the limit.",
    ], store)  # fmt: skip
