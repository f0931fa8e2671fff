"""The code that a profile gives to paste: it runs, reads what was profiled, and deals out as was simulated."""

import numpy as np
import pyarrow as pa
import pytest
from tools_kit import damage, ragged, write
from worlds import shared_world

from freescale_tools.model.batches import Setting, Waits, simulate_setting
from freescale_tools.model.workload import samples_of
from freescale_tools.profile.loader_code import loader_code, loader_parts
from freescale_tools.profile.measure import Columns, full
from freescale_tools.profile.recommend import cut_sentences, even_cut, recommend
from freescale_tools.scan.files import open_files
from fsdata.balance.cost import Polynomial

RANKS, ROWS = 4, 3_200


def advised(paths, columns, batch_size=16):
    """What is recommended for a profile of the paths."""
    files = open_files(paths)
    document = full(files, columns, paths=paths)
    samples = samples_of(document)
    uncut = Setting(max_length=samples.histogram.longest, ranks=RANKS, batch_size=batch_size)
    advice = recommend(samples, even_cut(samples, uncut))
    return {**advice, "code": loader_code(loader_parts(files, document, share=False), advice, uncut)}


def run(found):
    """The pasted code, and the batches of its steps."""
    scope: dict = {"steps": []}
    exec(found["code"].replace("...  #", "steps.append(batch)  #"), scope)
    return scope


def ran(paths, columns):
    """(what the pasted code made, how many samples it read)."""
    found = advised(paths, columns)
    scope = run(found)
    balance = scope["balance"]
    assert (balance.method, balance.max_tokens) == (found["method"], found["max_tokens"])
    assert repr(balance.cost) == found["cost_model"]
    assert scope["schema"].sequences[0].max_length == found["max_length"]
    return scope, sum(len(batch.origin) for batch in scope["steps"])


LENGTHS = np.random.default_rng(0).integers(0, 60, 200)


def histories(rows=200, kind=None):
    return ragged(LENGTHS[:rows]).cast(pa.list_(kind or pa.int64()))


def test_the_code_runs(tmp_path):
    table = {"items": pa.StructArray.from_arrays([histories()], ["ids"]), "shown": ragged([2] * 200)}
    path = write(tmp_path / "a.parquet", table)
    scope, samples = ran([str(path)], Columns(sequences=("items.ids",), candidates="shown"))
    assert scope["batch"].features.keys() == [scope["schema"].sequences[0].name, "shown"]
    assert (len(scope["loader"]), samples) == (13, 200)


@pytest.mark.parametrize("path", ["session.{}", "session.list.element.{}"])
def test_sessions_are_read_by_their_paths(tmp_path, path):
    """Also where the path is given as Parquet has it."""
    items = histories(64)
    events = [[{"ids": item, "words": f"w{item}", "price": 0.5} for item in one] for one in items.to_pylist()]
    write(tmp_path / "a.parquet", {"session": events})
    columns = Columns(sequences=tuple(path.format(name) for name in ("ids", "words", "price")))
    scope, _ = ran([str(tmp_path / "a.parquet")], columns)
    name = path.format("ids").replace(".", "_")
    read = [item for batch in scope["steps"] for item in batch.features[name].values().tolist()]
    assert sorted(read) == sorted(items.values.to_pylist())
    (sequence,) = scope["schema"].sequences
    assert [len(sequence.fields), len(sequence.floats)] == [2, 1]


def test_lists_of_the_same_lengths_are_fields_of_one_history(tmp_path):
    items = histories()
    ages = items.cast(pa.list_(pa.float32()))
    write(tmp_path / "a.parquet", {"items": items, "actions": items, "ages": ages, "searches": items[::-1]})
    columns = Columns(sequences=("items", "actions", "ages", "searches"))
    (sequence,) = ran([str(tmp_path / "a.parquet")], columns)[0]["schema"].sequences
    assert (sequence.fields, sequence.floats) == (("items", "actions"), ("ages",))


def test_the_code_reads_what_was_profiled_of_a_mixed_folder(tmp_path):
    good = {"items": histories(64), "shown": histories(64, pa.float32())}
    write(tmp_path / "a.parquet", good)
    path = write(tmp_path / "b.parquet", good, group=32)
    write(tmp_path / "users.parquet", {"user": [1, 2]})
    write(tmp_path / "old.parquet", {"items": [1, 2], "shown": [1, 2]})
    paths, columns = [str(tmp_path)], Columns(sequences=("items",), candidates="shown")
    assert ran(paths, columns)[1] == 128
    nulls = pa.array([None, [1, None]], good["items"].type)
    write(tmp_path / "c.parquet", {"items": nulls, "shown": good["shown"][:2]})
    damage(path, 1)
    assert ran(paths, columns)[1] == 64 + 32 + 2


def test_candidates_that_no_file_has_beside_its_events_are_left_out(tmp_path):
    write(tmp_path / "a.parquet", {"items": histories(64)})
    write(tmp_path / "b.parquet", {"shown": histories(40)})
    scope, samples = ran([str(tmp_path)], Columns(sequences=("items",), candidates="shown"))
    assert (samples, scope["schema"].candidates) == (64, None)


def test_paths_stay_as_they_were_given_where_files_differ_in_nothing_that_a_loader_minds(tmp_path):
    columns = Columns(sequences=("items",))
    write(tmp_path / "a.parquet", {"items": histories(64)})
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    paths = [str(tmp_path / "a*"), str(tmp_path / "b*")]
    assert f'ParquetSource({paths!r}, on_error="skip")' in advised(paths, columns)["code"]
    assert ran(paths, columns)[1] == 64
    write(tmp_path / "b.parquet", {"user": list(range(64)), "items": histories(64, pa.int32())})
    scope, samples = ran([str(tmp_path)], columns)
    assert samples == 128
    assert "sources" not in scope


def in_struct(items):
    return {"user": pa.StructArray.from_arrays([items], ["items"])}


def flat(items):
    return {"user.items": items}


def as_text(items):
    return flat(pa.array([[f"item {one}" for one in row] for row in items.to_pylist()], pa.list_(pa.string())))


@pytest.mark.parametrize(
    ("layouts", "sources"),
    [((in_struct, flat, in_struct), 1), ((as_text, in_struct, flat), 2), ((as_text,), 1)],
    ids=["struct and flat", "all three", "text"],
)
def test_files_that_need_other_expressions_get_sources_of_their_own(tmp_path, layouts, sources):
    for number, layout in enumerate(layouts):
        write(tmp_path / f"{number}.parquet", layout(histories(40, pa.int64() if number else pa.int32())))
    scope, samples = ran([str(tmp_path)], Columns(sequences=("user.items",)))
    assert samples == 40 * len(layouts)
    assert len(scope.get("sources", [None])) == sources
    lengths = [int(batch.features["user_items"].lengths().sum()) for batch in scope["steps"]]
    assert sum(lengths) == len(layouts) * LENGTHS[:40].sum()


def pasted_costs(rank, world_size, text):
    """What the samples of this rank cost, by step."""
    scope = run({"code": text})
    (name,) = (sequence.name for sequence in scope["schema"].sequences)
    cost = Polynomial()
    return [int(cost({name: batch.features[name].lengths().numpy()}).sum()) for batch in scope["steps"]]


def measured(text, steps):
    """(straggler %, time lost) of the whole steps of the pasted code on ranks that really talk."""
    costs = np.array(shared_world(RANKS).run(pasted_costs, text)).T[:steps]
    waits = Waits.of(costs, np.ones(steps))
    return waits.straggler()[0], waits.time_lost()[0]


def long_tail(generator, rows):
    """A quarter of the samples are worth dozens of the others: equal counts cannot be even."""
    return np.where(generator.random(rows) < 0.25, generator.integers(90, 130, rows), generator.integers(1, 4, rows))


def even(generator, rows):
    return np.rint(generator.lognormal(3, 0.8, rows)).astype(int)


def written(tmp_path, lengths):
    return [str(write(tmp_path / "a.parquet", {"items": ragged(lengths)}, group=100))]


def test_what_a_cut_loses_and_brings_stands_in_the_code(tmp_path):
    found = advised(written(tmp_path, np.array([2] * 200 + [900] * 2)), Columns(sequences=("items",)))
    lost, where = cut_sentences(found)
    assert f"# {lost}\n# {where}\nbalance = Balance(" in found["code"]


def grown(generator, rows):
    """Histories are longer in later files, as if they had grown."""
    return np.rint(generator.lognormal(3, 0.5, rows) * np.linspace(1, 20, rows)).astype(int)


@pytest.mark.parametrize(("lengths", "method"), [(even, "fbs+swap"), (long_tail, "vbs"), (grown, "fbs+swap")])
def test_what_is_quoted_is_to_the_digit_what_the_pasted_code_does(tmp_path, lengths, method):
    paths = written(tmp_path, lengths(np.random.default_rng(2), ROWS))
    found = advised(paths, Columns(sequences=("items",)))
    assert found["method"] == method
    steps = ROWS // RANKS // 16
    assert measured(found["code"], steps) == pytest.approx((found["straggler"], found["time_lost"]), abs=1e-12)
    plain = found["code"].replace(", balance=balance", "")
    none = found["straggler_none"], found["time_lost_none"]
    assert measured(plain, steps) == pytest.approx(none, rel=1e-12)
    in_order = plain.replace("shuffle=True", "shuffle=False")
    apart = abs(measured(in_order, steps)[1] - none[1])
    assert (apart > 0.05) == (lengths is grown), "where rows differ by their place, the order decides"


@pytest.mark.long
@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "hierarchical"])
def test_every_method_is_simulated_with_the_options_that_its_code_has(tmp_path, method):
    paths = written(tmp_path, long_tail(np.random.default_rng(4), ROWS))
    setting = Setting(max_length=130, ranks=RANKS, batch_size=16)
    files = open_files(paths)
    document = full(files, Columns(sequences=("items",)), paths=paths)
    samples = samples_of(document)
    cap = simulate_setting(samples, setting, methods=(method,))["fullest"][method] * 11 // 10
    point = simulate_setting(samples, setting, methods=(method,), max_tokens={method: cap})
    advice = {"max_length": 130, "method": method, "max_tokens": cap, "even_cut": None}
    code = loader_code(loader_parts(files, document, share=False), advice, setting)
    quoted = point["straggler"][method], point["time_lost"][method]
    assert measured(code, ROWS // RANKS // 16) == pytest.approx(quoted, abs=1e-12)
