"""Which kinds of sharded modules fscomm serves on the versions that are installed, and which versions these are.

`matrix.py` runs it in each environment: `python served.py answer.json`.
"""

import importlib.metadata
import json
import platform
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import conftest  # noqa: F401  every folder of tests can be imported from
from exact import compare
from exact_configs import CONFIGS
from exact_loops import base
from exact_managed import IDS, hash_zch, managed, mch
from exact_model import Config, Table
from worlds import World, WorldError

TABLE = Table(name="m", rows=24, sharding="row", features=("m0",), ids=IDS)
BEHIND_MAPS = Config(modules={"b": (TABLE,)}, static_graph=False, even=True, builder=managed({"m": mch}))
KINDS = {  # -> what is trained
    "EmbeddingCollection": CONFIGS["several"],
    "EmbeddingBagCollection": CONFIGS["pooled mixed"],
    "MCH": BEHIND_MAPS,
    "MPZCH": BEHIND_MAPS.but(builder=managed({"m": partial(hash_zch, policy=None)})),
}
PACKAGES = ("torch", "fbgemm-gpu-cpu", "torchrec", "numpy", "numba", "pyarrow", "polars")


def served(config: Config) -> str:
    """ "served", or how the modules of a configuration run instead, and why."""
    try:
        with World(2) as world:
            (found, said), *_ = world.run(compare, config, base)
    except WorldError as error:
        return f"fails: {str(error).strip().splitlines()[-1]}"
    if found:
        return f"differs: {found[0]}"
    return f"plainly: {'; '.join(sorted(set(said['fallbacks'].values())))}" if said["fallbacks"] else "served"


def main(answer: str) -> None:
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
    said = {"versions": versions, "served": {kind: served(config) for kind, config in KINDS.items()}}
    Path(answer).write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
