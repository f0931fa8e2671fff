"""The distribution of `StochasticLength`: lengths and positions that it draws, by the numbers of fixed seeds."""

import math

import numpy as np
import pytest
from sampling_reference import kept, key_of, splitmix

from fsdata import Schema, SchemaError, Sequence, StochasticLength
from fsdata.sampling.kernels import chosen as kernels
from fsdata.sampling.stochastic_length import (
    drawn_lengths,
    mixed,
    row_keys,
    short_length,
    whole_probability,
)

ROWS = 20_000


def keys(rows: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return row_keys(seed=seed, epoch=epoch, sequence="uih", file="f", row_group=3, row=np.arange(rows))


def positions_of(key: np.ndarray, length: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    positions = np.full(int(chosen.sum()), -1, np.int32)
    kernels.choose(key, length, chosen, positions)
    return positions


def test_splitmix_gives_its_published_numbers():
    """Those of seed 1234567 (Rosetta Code, and the reference implementation)."""
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    draws = splitmix(1234567)
    assert [next(draws) for _ in first] == first
    states = 1234567 + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mixed(states).tolist() == first


def test_keys_are_those_of_plain_python():
    found = row_keys(seed=5, epoch=2, sequence="né", file="ab", row_group=np.array([0, 7, 7]), row=np.array([0, 0, 9]))
    places = [("ab", 0, 0), ("ab", 7, 0), ("ab", 7, 9)]
    assert found.tolist() == [key_of(place, seed=5, epoch=2, sequence="né") for place in places]


@pytest.mark.parametrize("select", ["uniform", "newest"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_row_keeps_the_events_of_plain_python(select, keep):
    sample = StochasticLength(alpha=1.4, select=select)
    sequence = Sequence("uih", ("item",), max_length=100, keep=keep, sample=sample)
    length, key = np.arange(101), keys(101)
    wanted = [kept(int(one), n, sequence) for one, n in zip(key, length, strict=True)]
    drawn = drawn_lengths(sample, 100, length, key)
    assert drawn.tolist() == list(map(len, wanted))
    if select == "uniform":
        assert positions_of(key, length, drawn).tolist() == [position for of in wanted for position in of]


@pytest.mark.parametrize(
    ("alpha", "short"), [(1.7, 2120), (1.5, 861), (2, 8192), (1.0001, 90)], ids=["1.7", "1.5", "2", "least"]
)
def test_short_length_is_the_floor_of_a_power(alpha, short):
    assert short_length(StochasticLength(alpha=alpha), 8192) == short == math.floor(8192 ** (alpha / 2))


@pytest.mark.parametrize("length", [120, 150, 199, 200])
def test_a_history_stays_whole_with_the_probability_of_the_paper(length):
    """Within 4 standard deviations."""
    sample = StochasticLength(alpha=1.7)
    short, p = short_length(sample, 200), 200**1.7 / length**2
    assert short < length
    drawn = drawn_lengths(sample, 200, np.full(ROWS, length), keys(ROWS))
    assert set(drawn.tolist()) == {short, length}
    assert whole_probability(sample, 200, np.array([length])).tolist() == [p]
    assert abs((drawn == length).mean() - p) < 4 * math.sqrt(p * (1 - p) / ROWS)


def test_short_histories_and_alpha_2_keep_everything():
    sample = StochasticLength(alpha=1.7)
    length = np.arange(short_length(sample, 200) + 1)
    assert np.array_equal(drawn_lengths(sample, 200, length, keys(len(length))), length)
    assert np.array_equal(whole_probability(sample, 200, length), np.ones(len(length)))
    length = np.arange(201)
    assert np.array_equal(drawn_lengths(StochasticLength(alpha=2), 200, length, keys(201)), length)


def test_every_position_and_every_pair_is_equally_likely():
    """Chi-square of the counts of positions, and of pairs of them: a choice that is uniform in positions alone, such as
    a window, fails in pairs. Draws are without replacement, so a count has the variance p (1 - p) instead of p."""
    length, chosen = 12, 5
    positions = positions_of(keys(ROWS), np.full(ROWS, length), np.full(ROWS, chosen)).reshape(ROWS, chosen)
    assert (np.diff(positions, axis=1) > 0).all()
    counts = np.bincount(positions.reshape(-1), minlength=length)
    p = chosen / length
    assert ((counts - ROWS * p) ** 2 / (ROWS * p * (1 - p))).sum() * (length - 1) / length < 31.3  # 0.1 %, 11 degrees
    first, second = np.triu_indices(chosen, 1)
    pairs = np.bincount((positions[:, first] * length + positions[:, second]).reshape(-1), minlength=length**2)
    pairs = pairs[pairs > 0]
    assert len(pairs) == length * (length - 1) // 2
    expected = ROWS * chosen * (chosen - 1) / (length * (length - 1))
    assert ((pairs - expected) ** 2 / expected).sum() < 106  # 0.1 % of 65 degrees


def test_draws_of_a_length_and_of_positions_are_independent():
    """Positions of shortened rows alone, which are not those with any first draw."""
    sample, length = StochasticLength(alpha=1.9), 200
    short, key = short_length(sample, length), keys(ROWS)
    key = key[drawn_lengths(sample, length, np.full(ROWS, length), key) == short]
    positions = positions_of(key, np.full(len(key), length), np.full(len(key), short))
    counts, p = np.bincount(positions, minlength=length), short / length
    assert ((counts - len(key) * p) ** 2 / (len(key) * p * (1 - p))).sum() < 268  # 0.1 % of 199 degrees


def test_other_rows_epochs_seeds_and_sequences_draw_other_numbers():
    one = keys(1000)
    others = [
        keys(1000, epoch=1),
        keys(1000, seed=1),
        row_keys(seed=0, epoch=0, sequence="recent", file="f", row_group=3, row=np.arange(1000)),
        row_keys(seed=0, epoch=0, sequence="uih", file="g", row_group=3, row=np.arange(1000)),
        row_keys(seed=0, epoch=0, sequence="uih", file="f", row_group=4, row=np.arange(1000)),
    ]
    every = np.concatenate([one, *others])
    assert len(np.unique(every)) == len(every)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: StochasticLength(alpha=1), "above 1 and at most 2, got 1"),
        (lambda: StochasticLength(alpha=2.1), "above 1 and at most 2, got 2.1"),
        (lambda: StochasticLength(alpha=True), "got True"),
        (lambda: StochasticLength(alpha="1.7"), "got '1.7'"),
        (lambda: StochasticLength(alpha=float("nan")), "got nan"),
        (lambda: StochasticLength(alpha=1.7, select="oldest"), r"select=\.\.\.\) must be one of 'uniform', 'newest'"),
        (lambda: sampled_sequence(max_length=None), r"'uih': sample=\.\.\. needs max_length="),
        (lambda: sampled_sequence(share="user"), r"share=\.\.\. stores events once .* remove one of both"),
        (lambda: sampled_sequence(sample=1.7), "sample is a StochasticLength, got 1.7"),
        (
            lambda: Schema(
                candidates=Sequence("candidates", ("item",), max_length=9, sample=StochasticLength(alpha=1.7))
            ),
            r"Schema\(candidates=\.\.\.\) cannot have sample=",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error(make, match):
    with pytest.raises(SchemaError, match=match):
        make()


def sampled_sequence(**options):
    return Sequence("uih", ("item",), **{"max_length": 9, "sample": StochasticLength(alpha=1.7), **options})


def test_saved_states_know_the_option_only_where_it_is_used(tmp_path):
    assert repr(sampled_sequence(sample=None)) == (
        "Sequence(name='uih', fields=('item',), floats=(), max_length=9, keep='last')"
    )
    schema = Schema(sequences=(sampled_sequence(sample=StochasticLength(alpha=np.float64(1.5))),))
    assert repr(schema.sequences[0]).endswith("keep='last', sample=StochasticLength(alpha=1.5, select='uniform'))")
    assert eval(repr(schema)) == eval(str(schema)) == schema
    path = tmp_path / "data.toml"
    entry = "[schema]\n[[schema.sequences]]\nname = 'uih'\nfields = ['item']\nmax_length = 9\n"
    path.write_text(f"{entry}sample = {{ alpha = 1.5 }}\n")
    assert Schema.from_toml(path) == schema
    for wrong, match in [("{ alpha = 3 }", "at most 2, got 3"), ("{}", "needs alpha"), ("1.5", "is a table, got 1.5")]:
        path.write_text(f"{entry}sample = {wrong}\n")
        with pytest.raises(SchemaError, match=f"sequences.0..sample.*{match}"):
            Schema.from_toml(path)
