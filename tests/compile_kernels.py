"""Compile the kernels that tests call: `make test` runs this first, so that no two tests compile the same.

What a loader needs is compiled in parallel. The rest is called, by playing some of what the golden files record. A
kernel that is not called here is compiled by the first test that calls it. Numba keeps the results in NUMBA_CACHE_DIR.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted({str(path.parent) for path in HERE.rglob("*.py")} - {str(HERE)})]


def main() -> None:
    import golden_comm
    import golden_tools
    from golden_data import FILES
    from worlds import shared_world

    from fsdata.compose.reading import all_kernels
    from fsdata.kernels.warm import compile_missing
    from fsranks.machine.cores import usable_cores

    compile_missing(all_kernels(), usable_cores(), print)
    golden_tools.documents(FILES)
    shared_world(1).run(golden_comm._report, "several")


if __name__ == "__main__":
    main()
