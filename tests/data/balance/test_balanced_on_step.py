"""`on_step` of balanced ranks."""

from rank_loaders import loader_on
from worlds import shared_world

from fsdata import Balance


def balanced(rank, size, folder):
    said = []
    with loader_on(folder, rank=None, world_size=None, balance=Balance(), on_step=said.append) as loader:
        seen = [
            (batch.stats.straggler_after, sum(len(batch.features[name].values()) for name in ("item", "candidate")))
            for batch in loader
        ]
    return [(numbers, *of_batch) for numbers, of_batch in zip(said, seen, strict=True)]


def test_tokens_and_straggler_share_are_those_of_the_batch(folder):
    ranks = shared_world(2).run(balanced, folder)
    for said in ranks:
        assert all(numbers["straggler_share"] == planned for numbers, planned, _ in said)
        assert all(numbers["tokens"] == tokens for numbers, _, tokens in said)
    shares, others = ([numbers["straggler_share"] for numbers, *_ in said] for said in ranks)
    assert shares == others
    assert max(shares) > 0
