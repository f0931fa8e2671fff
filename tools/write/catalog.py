"""The command `freescale catalog`: reads the footers of files once, and writes what a loader needs of them."""

import time
from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal


def catalog(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")],
    out: Annotated[Path, typer.Option(help="The file of the catalog, for ParquetSource(catalog=...).")],
    update: Annotated[
        bool, typer.Option("--update", help="Open only files that the catalog in --out does not know as they are now.")
    ] = False,
    bounds: Annotated[
        list[str],
        typer.Option(
            help="A column of integers or times (may be given again): keep its least and greatest value in every row "
            "group, so that a filter on it leaves row groups out unread."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Write a catalog of Parquet files: with it a job neither lists folders nor reads footers before it begins.

    A file counts as unchanged while its size and its time of modification stay. Files without a usable footer
    are left out and named. The exit status is then 1. With --update, bounds that the catalog has are kept; those
    of further columns need all files opened again.
    """
    with Terminal(json=json) as terminal:
        from fsdata.catalog.catalog import EMPTY, updated
        from fsdata.catalog.listing.find_files import discover
        from fsdata.catalog.retry import Retrying
        from fsdata.errors import SchemaError
        from fsdata.lake.catalog_file import read_catalog_file, write_catalog
        from fsranks.machine.cores import usable_cores

        begin = time.monotonic()
        try:
            files = discover(paths, None, label=paths[0])
            system = files.folders[0].filesystem
            old = read_catalog_file(out, None if files[0].local else system) if update and out.exists() else EMPTY
            threads = usable_cores() if files[0].local else 16
            found = updated(
                old, files, threads=threads, retry=Retrying(), bounds_of=list(dict.fromkeys([*old.bounds, *bounds]))
            )
            if not len(found.catalog):
                raise CommandFailed(f"none of {len(files)} files is readable: {found.faults[0][1]}")
            missing = [name for name, of in found.catalog.bounds.items() if (of[1] < of[0]).all()]
            if missing:
                raise UsageError(
                    f"no footer has bounds of {', '.join(missing)}: a column of integers or times with statistics is "
                    "needed"
                )
            out.parent.mkdir(parents=True, exist_ok=True)
            write_catalog(found.catalog, out)
        except (SchemaError, FileNotFoundError) as error:
            raise UsageError(str(error)) from error
        except ConnectionError as error:
            raise UsageError(f"{error}. Check the address, the network, the credentials and the permissions") from error
        except OSError as error:
            raise CommandFailed(f"the catalog cannot be made: {error}") from error
        for name, fault in found.faults:
            terminal.finding(f"left out: {name}: {fault}")
        size, seconds = out.stat().st_size, time.monotonic() - begin
        document = {
            "version": 1,
            "kind": "catalog",
            "out": str(out),
            "files": len(found.catalog),
            "row_groups": len(found.catalog.rows),
            "rows": int(found.catalog.rows.sum()),
            "schemas": len(found.catalog.schemas),
            "bounds": list(found.catalog.bounds),
            "new": found.new,
            "changed": found.changed,
            "gone": found.gone,
            "left_out": len(found.faults),
            "bytes": size,
            "seconds": round(seconds, 3),
        }
        terminal.say(
            f"{document['files']:,} files, {document['row_groups']:,} row groups, {document['rows']:,} rows, "
            f"{document['schemas']} schemas; {found.new:,} files are new, {found.changed:,} changed, {found.gone:,} "
            "gone"
        )
        terminal.say(f"written to {out}: {size / 1e6:,.1f} MB in {seconds:.1f} s")
        terminal.result(document)
