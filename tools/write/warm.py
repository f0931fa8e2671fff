"""The command `freescale warm`: compiles all kernels, so that no process of an image compiles any at its first use.

Loaders compile what they need when they are made, and fscomm when its block is entered: that takes 10 s and more on a
machine that has not done it. Numba keeps what it compiled in a folder, for the kind of CPU that it ran on.
"""

import time
from types import ModuleType
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Terminal


def warm(
    fscomm: Annotated[bool, typer.Option("--fscomm", help="Also those of fscomm, for jobs that enable it.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes that compile. Default: one for each core.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Compile the kernels of the loader and of these commands, and keep them: for images, and before a first job.

    Numba keeps them where NUMBA_CACHE_DIR says, else in the folders of the packages, or, where these cannot be
    written, in the cache folder of the user. Run it on the kind of CPU that the image will run on.
    """
    with Terminal(json=json) as terminal:
        if jobs is not None and jobs < 1:
            raise UsageError(f"--jobs must be at least 1, got {jobs}")

        from fsdata.compose.reading import all_kernels
        from fsdata.kernels.warm import compile_missing, folders_of
        from fsranks.libraries import compile_kernel
        from fsranks.machine.cores import usable_cores

        kernels = all_kernels()
        if not folders_of(kernels):
            raise CommandFailed(
                "numba finds no folder to keep compiled kernels in: let NUMBA_CACHE_DIR name one that can be written"
            )
        begin = time.monotonic()

        def said(name: str) -> None:
            terminal.say(f"{time.monotonic() - begin:5.1f} s  {name}")

        counts = [("fsdata", len(kernels), compile_missing(kernels, jobs or usable_cores(), said))]

        def add(part: str, *modules: ModuleType) -> None:
            found = [each for module in modules for each in _kernels_in(module)]
            counts.append((part, len(found), sum(bool(each.stats.cache_misses) for each in found)))
            kernels.extend(found)
            said(f"{part}: {len(found)} kernels")

        from freescale_tools.collisions import kernels as of_collisions  # compiled when it is imported
        from freescale_tools.scan import level_kernels

        compile_kernel(level_kernels.add_lengths)
        add("freescale", of_collisions, level_kernels)
        if fscomm:  # what plans the exchanges of a step
            from fscomm.bags import kernels as of_bags
            from fscomm.compose import compile_kernels
            from fscomm.plan import hash_tables
            from fscomm.plan import kernels as of_plans
            from fscomm.two_levels import kernels as of_hosts

            compile_kernels()
            add("fscomm", hash_tables, of_plans, of_bags, of_hosts)
        terminal.table("kernels", ["of", "there", "compiled now"], counts)
        folders = folders_of(kernels)
        terminal.say("numba keeps them in")
        for folder in folders:
            terminal.say(f"  {folder}")
        document = {part: {"kernels": there, "compiled": now} for part, there, now in counts}
        terminal.result({**header("warm"), "parts": document, "folders": folders})


def _kernels_in(module: ModuleType) -> list[Any]:
    from numba.core.dispatcher import Dispatcher

    found = (each for each in vars(module).values() if isinstance(each, Dispatcher))
    return [each for each in found if each.py_func.__module__ == module.__name__]
