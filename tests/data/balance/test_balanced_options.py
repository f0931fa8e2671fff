"""Arguments of a loader that balances."""

import json

import numpy as np
import pytest
from data_kit import rows_of
from rank_loaders import sources_of

from fsdata import (
    Balance,
    FreeScaleDataLoader,
    ParquetSource,
    Polynomial,
    Schema,
    Sequence,
)


@pytest.fixture
def sources(folder):
    return sources_of(folder)


def test_scalars_of_numpy_are_taken_for_those_of_python(sources):
    """States, fingerprints and plans show what was given, so both must read alike."""

    def state(number, real, text, flag):
        schema = Schema(
            sequences=Sequence(text("uih"), fields=(text("item"),), max_length=number(8), keep=text("last")),
            context=(text("row"),),
        )
        read = {"defaults": {text("item"): number(3)}, "skip": number(2), "limit": number(30), "weight": real(2)}
        source = ParquetSource(sources[0].paths, **read)
        balance = Balance(cost=Polynomial(linear=number(1)), max_tokens=number(99))
        order = {"shuffle": flag(True), "shuffle_window": number(2), "seed": number(3), "mix": text("weighted")}
        options = {"batch_size": number(4), "prefetch": number(0), "drop_last": flag(False), "timeout_s": real(30)}
        ranks = {"rank": number(0), "world_size": number(1)}
        with FreeScaleDataLoader(source, schema, balance=balance, **order, **options, **ranks) as loader:
            rows = [rows_of(batch) for batch in loader]
            loader.set_epoch(number(4))
            return rows, json.dumps(loader.state_dict()), repr(schema), repr(balance)

    assert state(np.int64, np.float64, np.str_, np.bool_) == state(int, float, str, bool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": True}, r"balance=Balance\(\)"),
        ({"balance": Balance(), "max_tokens": 9}, r"give Balance\(max_tokens=...\) in its place"),
    ],
)
def test_nonsense_is_named(loader_of, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        loader_of(**options)
