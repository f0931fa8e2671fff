"""Managed collision in training on the CPU: without the kernels it fails, with them it is what TorchRec means by it."""

from functools import partial
from typing import Any

import pytest
import torch
from exact import differences, flat
from exact_kinds import SERVED
from exact_managed import BUCKETS, at_hour, hash_zch, managed, mch, needs_mpzch
from exact_model import Config, batches, build
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from test_maps import TABLES
from torchrec import JaggedTensor
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from worlds import shared_world

import fscomm
from fscomm.managed.cpu_kernels import zero_collision_hash
from fscomm.managed.zero_collision import FREE, assign_slots

pytestmark = needs_mpzch
CONFIG = Config(modules={"a": (SERVED,), "b": TABLES}, static_graph=False, even=True, steps=8, max_length=8)
INITIAL = 7.0


def state_of(module: Any) -> dict[str, tuple[torch.Tensor, list[torch.Tensor]]]:
    """By table its weights, and the states of its optimizer."""
    found = {}
    for table, (kernel, number) in module._table_to_tbe_and_index.items():
        states = [] if kernel.optimizer == EmbOptimType.EXACT_SGD else kernel.split_optimizer_states()[number]
        found[table] = kernel.split_embedding_weights()[number].clone(), [state.clone() for state in states]
    return found


def check_reset(rows: torch.Tensor, before: Any, after: Any, *, states_too: bool) -> int:
    """`rows` have initial weights, and no optimizer state if `states_too`; all else is as it was. How many numbers
    their states had."""
    (weights, states), (now, states_now) = before, after
    weights[rows] = INITIAL
    assert torch.equal(weights, now)
    count = sum(int(state[rows].count_nonzero()) for state in states)
    for state, state_now in zip(states, states_now, strict=True):
        if states_too:
            state[rows] = 0
        assert torch.equal(state, state_now)
    return count


def train(model: Any, optimizer: Any, config: Config, rank: int, size: int) -> list[Any]:
    """What every step gave."""
    given: list[Any] = []
    for step, batch in enumerate(batches(config, rank, size, 0, config.steps)):
        with at_hour(step):
            optimizer.zero_grad()
            output = model(batch)
            remapped = model.module.remapped[-1]
            given += [output.detach().clone(), remapped.values().clone(), remapped.lengths().clone()]
            output.square().sum().backward()
            optimizer.step()
    return given


def trained(rank: int, size: int, optimizer: str, policy: str) -> tuple[int, list[str]]:
    """How many rows that were in use got another id, and what differs in a run with the kernels of a block."""
    builder = managed({"h": partial(hash_zch, policy=policy), "m": mch}, initial=INITIAL, kernels=False)
    config = CONFIG.but(optimizer=optimizer, builder=builder)
    model, of_model = build(config, size)
    remove = fscomm.cpu_kernels.install(model)
    module = model.module.embeddings["b"]
    map_of_h = module._managed_collision_collection._managed_collision_modules["h"]
    count, identities = 0, map_of_h._hash_zch_identities.flatten().clone()

    def evict(evictions: dict[str, torch.Tensor | None]) -> None:
        nonlocal count, identities
        old, identities = identities, map_of_h._hash_zch_identities.flatten().clone()
        replaced = ((old != FREE) & (old != identities)).nonzero().flatten()
        told = evictions["h"]
        assert torch.equal(replaced[:0] if told is None else told, replaced)
        before = state_of(module)
        type(module)._evict(module, evictions)
        after = state_of(module)
        for table, rows in evictions.items():
            if rows is not None:
                had_state = check_reset(rows, before[table], after[table], states_too=optimizer == "rowwise")
                count += len(rows) if optimizer == "sgd" else had_state

    module._evict = evict
    found = train(model, of_model, config, rank, size)
    if size == 1:
        check_evaluation(model, config)
    remove()
    again, of_again = build(config, size)
    with fscomm.enable(again, cpu_kernels=True):
        found_again = train(again, of_again, config, rank, size)
    states = [
        flat([given, state_of(embeddings), dict(embeddings.named_buffers())])
        for given, embeddings in ((found, module), (found_again, again.module.embeddings["b"]))
    ]
    with pytest.raises(RuntimeError), at_hour(0):  # the kernels are gone
        again(batches(config, rank, size, 0, 1)[0])
    return count, differences(*states)


def check_evaluation(model: Any, config: Config) -> None:
    """Ids that have a row are looked up there, and nothing is written; on one rank."""
    collection = model.module.embeddings["b"]._managed_collision_collection
    before = flat(dict(collection.named_buffers()))
    identities = collection._managed_collision_modules["h"]._hash_zch_identities.flatten()
    (batch,) = batches(config, 0, 1, config.steps - 2, config.steps - 1)  # not the last one: some were evicted since
    model.eval()
    with torch.no_grad(), at_hour(100):
        model(batch)
    model.train()
    assert differences(before, flat(dict(collection.named_buffers()))) == []
    ids, rows = (
        torch.cat([kjt[name].values() for name in ("h0", "h1")]) for kjt in (batch.ids["b"], model.module.remapped[-1])
    )
    known = torch.isin(ids, identities)
    assert known.any()
    assert not known.all()
    assert torch.equal(identities[rows[known]], ids[known])


@pytest.mark.parametrize(
    ("size", "optimizer", "policy"),
    [(1, "sgd", "SINGLE_TTL"), (2, "adagrad", "LRU"), (2, "rowwise", "PER_FEATURE_TTL")],
)
def test_rows_with_a_new_id_begin_anew(size: int, optimizer: str, policy: str) -> None:
    for count, differing in shared_world(size).run(trained, optimizer, policy):
        assert count > 10
        assert differing == []


NOTICE_OF_TORCHREC = pytest.mark.filterwarnings("ignore:To copy construct from a tensor")


def backward_after_the_next_forward(rank: int, size: int) -> int:
    """How many rows were evicted between a forward and its backward."""
    config = CONFIG.but(builder=managed({"h": hash_zch, "m": mch}))
    model, _ = build(config, size)
    module, evicted = model.module.embeddings["b"], 0

    def count(evictions: dict[str, torch.Tensor | None]) -> None:
        nonlocal evicted
        evicted += sum(len(rows) for rows in evictions.values() if rows is not None)
        type(module)._evict(module, evictions)

    module._evict, module._allow_in_place_embed_weight_update = count, True
    first, second = batches(config, rank, size, 0, 2)
    with at_hour(0):
        loss, before = model(first).square().sum(), evicted
        (loss + model(second).square().sum()).backward()
    return evicted - before


def test_rows_may_be_evicted_before_the_backward_of_another_forward() -> None:
    assert all(shared_world(1).run(backward_after_the_next_forward))


@NOTICE_OF_TORCHREC
@pytest.mark.parametrize("option", ["track_id_freq", "disable_fallback"])
def test_what_cannot_be_trained_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        fscomm.cpu_kernels.install(hash_zch(TABLES[0], **{option: True}))


@NOTICE_OF_TORCHREC
def test_kernels_are_taken_away_by_who_brought_them() -> None:
    module = hash_zch(TABLES[0])
    remove, remove_nothing = fscomm.cpu_kernels.install(module), fscomm.cpu_kernels.install(module)
    remove_nothing()
    compiled = len(assign_slots.signatures)
    with at_hour(0):
        module(of_features(h0=torch.arange(5)))
    assert len(assign_slots.signatures) == compiled == 1
    assert module._zero_collision_hash is zero_collision_hash
    remove()
    remove()
    assert module._zero_collision_hash is not zero_collision_hash


@NOTICE_OF_TORCHREC
def test_a_torchrec_that_takes_no_other_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(HashZchManagedCollisionModule, "_zero_collision_hash")
    with pytest.raises(ValueError, match=r"cannot train on the CPU with torchrec [\d.]+ \(.*\): use 1\.7 or newer"):
        fscomm.cpu_kernels.install(hash_zch(TABLES[0]))


def of_features(**ids: torch.Tensor) -> dict[str, JaggedTensor]:
    return {name: JaggedTensor(values, lengths=torch.ones_like(values)) for name, values in ids.items()}


@NOTICE_OF_TORCHREC
def test_ids_of_a_read_only_feature_get_no_row() -> None:
    module = hash_zch(TABLES[0], enable_per_feature_lookups=True)
    fscomm.cpu_kernels.install(module)
    with at_hour(0):
        module(of_features(h0=torch.arange(5), h1_readonly=torch.arange(3, 9)))
    assert set(module._hash_zch_identities.flatten().tolist()) == {FREE, *range(5)}


@NOTICE_OF_TORCHREC
def test_new_ids_are_admitted_at_random() -> None:
    """One id for each bucket, which has a slot for it, and one for ids that are not admitted."""
    module = hash_zch(TABLES[0], opt_in_prob=50, percent_reserved_slots=50)
    fscomm.cpu_kernels.install(module)
    ids = torch.arange(BUCKETS)
    torch.manual_seed(0)
    with at_hour(0):
        given = module(of_features(h0=ids))["h0"].values()
    admitted = module._hash_zch_identities.flatten()[given] == ids
    assert 0 < admitted.sum() < BUCKETS
    assert torch.equal(given, 2 * ids + ~admitted)


@NOTICE_OF_TORCHREC
def test_ids_of_another_rank_are_refused_and_writes_are_seen() -> None:
    module = hash_zch(TABLES[0])
    fscomm.cpu_kernels.install(module)
    before = module._hash_zch_identities._version
    with at_hour(0):
        module(of_features(h0=torch.arange(3)))
        assert module._hash_zch_identities._version > before
    with pytest.raises(ValueError, match="the id -1 belongs to a bucket of another rank"):
        zero_collision_hash(
            input=torch.tensor([5, -1]),
            identities=torch.full((12, 1), FREE),
            max_probe=1,
            local_sizes=torch.tensor([2, 2]),
            offsets=torch.tensor([0, 22]),
        )


@NOTICE_OF_TORCHREC
def test_ids_of_another_type_are_refused() -> None:
    module = hash_zch(TABLES[0])
    fscomm.cpu_kernels.install(module)
    with pytest.raises(TypeError, match=r"int32.*int64"):
        module(of_features(h0=torch.arange(3, dtype=torch.int32)))
