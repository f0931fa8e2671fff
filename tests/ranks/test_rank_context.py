"""Which rank this is: arguments, environment, and what is refused."""

import pytest

from fsranks.rank_context import RankContext, resolve


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve() == RankContext(rank=3, world_size=4)
    assert resolve(1, 2) == RankContext(rank=1, world_size=2)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert resolve() == RankContext(rank=0, world_size=1)


@pytest.mark.parametrize(
    ("rank", "world_size", "match"),
    [
        (0, None, "rank was given without world_size"),
        (None, 2, "world_size was given without rank"),
        (2, 2, r"rank must be in 0\.\.1 for world_size 2, got 2"),
        (-1, 2, "got -1"),
        (0, 0, "for world_size 0"),
        (True, 2, "rank must be an integer"),
        (0, 2.0, "world_size must be an integer, got 2.0"),
    ],
)
def test_contradictory_arguments_are_refused(rank: object, world_size: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        resolve(rank, world_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "match"),
    [
        ({"RANK": "1"}, "no WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "no RANK"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "must be integers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"got 2 \(environment\)"),
    ],
)
def test_a_broken_environment_is_refused(
    environment: dict[str, str], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=match):
        resolve()
