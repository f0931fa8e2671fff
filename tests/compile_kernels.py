"""Compile the kernels that tests call: `make test` runs this first, in one process, so that no two compile the same.

It plays some of what the golden files record, which calls nearly all kernels with the types that users give. A kernel
that is not called here is compiled by the first test that calls it. Numba keeps the results in NUMBA_CACHE_DIR.
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted({str(path.parent) for path in HERE.rglob("*.py")} - {str(HERE)})]


def main() -> None:
    import as_of_data
    import golden_comm
    import golden_loader
    import golden_plans
    import golden_tools
    import histories
    from golden_data import FILES
    from worlds import shared_world

    golden_loader.orders(FILES)
    golden_plans.plans(FILES)
    golden_tools.documents(FILES)
    shared_world(1).run(golden_comm._report, "several")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        histories.write(folder / "rows")
        as_of_data.Data.drawn(0).write(folder / "stored_once")
        as_of_data.read(folder / "stored_once")
        with histories.loader_on(folder / "rows") as loader:
            list(loader)


if __name__ == "__main__":
    main()
