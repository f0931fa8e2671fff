"""Exactness: whatever a user can look at is, to the bit, what the same loop gives without fscomm."""

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_model import Config, Table
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from worlds import shared_world


def check(size: int, config: Config, loop: str, served: bool = True) -> None:
    for rank, (found, said) in enumerate(shared_world(size).run(compare, config, LOOPS[loop])):
        assert found == [], f"rank {rank} of {size}, {loop}"
        if served:
            assert said["fallbacks"] == {}, f"rank {rank} of {size}, {loop}"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_several_modules_and_sharding_groups(size: int) -> None:
    check(size, CONFIGS["several"], "base")


OTHERS = [name for name in CONFIGS if name != "several"]


@pytest.mark.parametrize(("name", "size"), [(name, 2 + place % 3) for place, name in enumerate(OTHERS)])
def test_models(name: str, size: int) -> None:
    check(size, CONFIGS[name], "base")


PARTLY_PLAIN = {  # steps of these run plainly, and the report says so
    "evaluation_of_the_batch",
    "flush",
    "load_state_dict",
    "module_alone",
    "other_features",
    "same_batch_twice",
    "two_forwards_one_backward",
    "without_lookahead",
}


@pytest.mark.parametrize(("loop", "size"), [(loop, 3 if place % 3 else 2) for place, loop in enumerate(LOOPS)])
def test_loops(loop: str, size: int) -> None:
    check(size, CONFIGS["loops"], loop, served=loop not in PARTLY_PLAIN)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    modules: dict[str, tuple[Table, ...]] = {}
    for module in ("a", "b")[: draw(st.integers(1, 2))]:
        tables = []
        for number in range(draw(st.integers(1, 3))):
            name = f"{module}{number}"
            tables.append(
                Table(
                    name=name,
                    rows=draw(st.sampled_from([12, 24, 41, 97])),
                    sharding=draw(st.sampled_from(["row", "row", "table", "column"])),
                    features=tuple(f"{name}_{feature}" for feature in range(draw(st.integers(1, 2)))),
                    half=draw(st.booleans()) and draw(st.booleans()),
                    home=draw(st.integers(0, 3)),
                    rate=draw(st.sampled_from([1.0, 1.0, 0.5])),
                )
            )
        modules[module] = tuple(tables)
    return Config(
        modules=modules,
        optimizer=draw(st.sampled_from(["sgd", "adagrad", "rowwise"])),
        weight_decay=draw(st.sampled_from([0.0, 0.02])),
        static_graph=False,
        one_kjt=draw(st.booleans()),
        max_batch=draw(st.integers(1, 6)),
        max_length=draw(st.integers(0, 5)),
        spread=draw(st.sampled_from([0.05, 0.3, 1.0])),
        seed=draw(st.integers(1, 10_000)),
    )


RANDOM = {"phases": [Phase.explicit, Phase.generate], "deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=8, derandomize=True, **RANDOM)  # type: ignore[arg-type]
@given(size=st.integers(1, 4), config=configs(), loop=st.sampled_from(sorted(LOOPS)))
def test_random_models_and_loops(size: int, config: Config, loop: str) -> None:
    check(size, config, loop, served=False)


@pytest.mark.full
@pytest.mark.timeout(1800)
@settings(max_examples=300, **RANDOM)  # type: ignore[arg-type]
@given(size=st.integers(1, 4), config=configs(), loop=st.sampled_from(sorted(LOOPS)))
def test_many_random_models_and_loops(size: int, config: Config, loop: str) -> None:
    check(size, config, loop, served=False)
