"""Steps that are computed in parts: to the bit what one call of the embedding modules for the whole batch gives."""

from typing import Any

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_model import Config
from parts import PARTS
from worlds import World, shared_world


def compared(rank: int, size: int, config: Config, parts: int, options: dict[str, Any]) -> tuple[list[str], Any]:
    return compare(rank, size, config, PARTS[parts], "fscomm", {"parts": parts, **options})


def check(world: World, config: Config, parts: int, **options: Any) -> list[Any]:
    answers = world.run(compared, config.but(static_graph=False), parts, options)
    for rank, (found, _) in enumerate(answers):
        assert found == [], f"rank {rank} of {world.size}"
    return [said for _, said in answers]


MODELS = [  # one for each kind of sharding, of precision on the way, of bags, of kernels; each transport, and chunks
    ("several", 1, 4, "gloo"),
    ("several", 2, 3, "copy-engine"),
    ("odd tables", 2, 2, "gloo"),
    ("half output", 2, 3, "host-staged"),
    ("counters", 2, 2, "gloo"),
    ("tiny", 2, 4, "gloo"),
    ("pooled mixed", 2, 3, "gloo"),
    ("pooled hosts", 4, 2, "gloo"),
    ("pooled table mean", 2, 2, "host-staged"),
    ("pooled weighted", 3, 2, "gloo"),
    ("quantised", 2, 2, "gloo"),
    ("quantised sums", 2, 3, "gloo"),
]


@pytest.mark.parametrize(("name", "size", "parts", "transport"), MODELS, ids=[f"{m[0]}-{m[1]}" for m in MODELS])
def test_models(name: str, size: int, parts: int, transport: str) -> None:
    """All forwards but those of the first step are served."""
    config = CONFIGS[name]
    for said in check(shared_world(size), config, parts, transport=transport):
        assert said["fallbacks"] == {}
        for forwards in said["report"]["forwards"].values():
            assert forwards["served"] == config.steps - 1
