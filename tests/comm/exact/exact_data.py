"""Data for exactness tests: seeded batches with collisions, duplicates, empty features, empty ranks, uneven sizes."""

import torch
from exact_model import AGAIN, DENSE, Batch, Config, Table
from torchrec import KeyedJaggedTensor


def batches(config: Config, rank: int, size: int, start: int, stop: int) -> list[Batch]:
    return [batch(config, rank, size, step) for step in range(start, stop)]


def batch(config: Config, rank: int, size: int, step: int) -> Batch:
    """The batch of one rank and step, the same at every call."""
    random = torch.Generator().manual_seed((config.seed * 1009 + step) * 64 + rank)
    samples = 1 + int(torch.randint(0, config.max_batch, (1,), generator=random))
    samples = samples if config.uneven else config.max_batch
    empty = size > 1 and (rank + step) % 7 == 6  # samples, but not one id
    kjts: dict[str, KeyedJaggedTensor] = {}
    for call in range(config.calls):
        ids: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        for module, tables in config.modules.items():
            for table in tables:
                for feature in table.features:
                    longest = 0 if empty or (step + len(ids)) % 5 == 4 else config.max_length
                    lengths = torch.randint(0, longest + 1, (samples,), generator=random)
                    values = _values(table, config, step, int(lengths.sum()), random)
                    ids.setdefault(module, {})[feature] = (lengths, values)
        if config.one_kjt:
            features = {feature: ids[module][feature] for module in ids for feature in ids[module]}
            kjts["all" + AGAIN * call] = _kjt(dict(reversed(features.items())), samples)
            continue
        for module, of_module in ids.items():
            kjt = _kjt(of_module, samples)
            if config.weighted and config.modules[module][0].pooling:
                weights = torch.rand(kjt.values().numel(), generator=random) - 0.3
                kjt = KeyedJaggedTensor(
                    keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths(), weights=weights, stride=samples
                )
            kjts[module + AGAIN * call] = kjt
    return Batch(
        ids=kjts,
        dense=torch.randn(samples, DENSE, generator=random),
        target=torch.randn(samples, generator=random),
        weight=torch.rand(samples, generator=random) + 0.1,
    )


def _values(table: Table, config: Config, step: int, count: int, random: torch.Generator) -> torch.Tensor:
    """Rows around a place that moves from step to step: some are drawn again by the next batch, some are not."""
    window = max(int(table.rows * config.spread), 1)
    drawn = torch.randint(0, window, (count,), generator=random) + step * max(window // 2, 1)
    if count > 1:
        drawn[-1] = drawn[0]  # at least one duplicate in the batch
    return drawn % table.rows


def _kjt(features: dict[str, tuple[torch.Tensor, torch.Tensor]], samples: int) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=list(features),
        values=torch.cat([values for _, values in features.values()]),
        lengths=torch.cat([lengths for lengths, _ in features.values()]),
        stride=samples,
    )
