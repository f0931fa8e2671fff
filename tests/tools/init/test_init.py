"""`freescale init`: a schema file from the columns of files, which `freescale check` takes without a finding."""

from datetime import datetime
from pathlib import Path

import pyarrow as pa
from tools_kit import answered, ran, refused
from tools_kit import write as write_file

from fsdata import FreeScaleDataLoader, Schema, Sequence, sources_from_toml

ROWS = 40
HISTORY = [list(range(row % 7)) for row in range(ROWS)]
SHOWN = [list(range(1 + row % 3)) for row in range(ROWS)]
USERS = [10 * row for row in range(ROWS)]


def write(folder: Path, **columns) -> Path:
    return write_file(folder / "a.parquet", columns).parent


def made(data: Path, *options) -> tuple[Schema, str]:
    """The schema of the file that the command wrote, and its text; all rows fit it, and a loader reads them."""
    out = data.parent / "schema.toml"
    ran("init", data, "--out", out, *options)
    ran("check", data, "--schema", out)
    schema = Schema.from_toml(out)
    with FreeScaleDataLoader(sources_from_toml(out), schema, batch_size=16, rank=0, world_size=1) as loader:
        assert sum(len(batch) for batch in loader) > 0
    return schema, out.read_text()


def test_aligned_lists_ids_numbers_and_labels_with_their_reasons(tmp_path):
    data = write(
        tmp_path / "data",
        user_id=USERS,
        item=HISTORY,
        price=[[0.5] * len(each) for each in HISTORY],
        age=[row % 9 for row in range(ROWS)],
        score=[0.25 * row for row in range(ROWS)],
        click=[row % 2 for row in range(ROWS)],
        is_new=[row % 2 for row in range(ROWS)],
        finished=[row % 3 // 2 for row in range(ROWS)],
        bought=[row % 5 == 0 for row in range(ROWS)],
        requestTs=[1_750_000_000_000 + row for row in range(ROWS)],
        request_id=[7 * row for row in range(ROWS)],
    )
    schema, text = made(data)
    assert schema == Schema(
        sequences=(Sequence("uih", ("item",), ("price",)),),
        context=("user_id",),
        dense=("age", "score"),
        labels=("click", "is_new", "finished", "bought"),
        time="requestTs",
        passthrough=("request_id",),
    )
    for line in (
        '"user_id",  # whole numbers, 40 different',
        '"score",  # numbers from 0 to 9.75',
        '"finished",  # 0 or 1; if the model may know it beforehand, it is context',
        'time = "requestTs"  # ms since 1970, mostly from 2025-06-15 to 2025-06-15',
        'name = "uih"  # lists of equal length in all 40 rows, 0 to 6 long, mean 2.9',
        '"request_id",  # whole numbers, another one in every row',
    ):
        assert line in text


def test_two_groups_of_lists_nested_ids_and_candidates_with_their_labels(tmp_path):
    data = write(
        tmp_path / "data",
        shown=SHOWN,
        shown_labels=[[place % 2 for place in each] for each in SHOWN],
        query=[[row] * (row % 2) for row in range(ROWS)],
        item=HISTORY,
        tags=[[[1, 2]] * len(each) for each in HISTORY],
        at=pa.array([[row] * len(each) for row, each in enumerate(HISTORY)], pa.list_(pa.timestamp("s"))),
    )
    schema, _ = made(data)
    assert schema == Schema(
        sequences=(Sequence("uih", ("item", "at"), nested=("tags",)), Sequence("query list", ("query",))),
        candidates=Sequence("candidates", ("shown",)),
        labels=("shown_labels",),
    )


def test_text_becomes_ids_unless_every_row_has_another_one(tmp_path):
    data = write(
        tmp_path / "data",
        **{'land, "wo"': [f"land {row % 3}" for row in range(ROWS)]},
        request=[f"request {row}" for row in range(ROWS)],
        words=[[f"word {item}" for item in each] for each in HISTORY],
        item=HISTORY,
    )
    schema, text = made(data)
    assert schema == Schema(
        sequences=(Sequence("uih", ("words", "item")),), context=('land, "wo"',), passthrough=("request",)
    )
    assert '"land, \\"wo\\"" = { key = "land, \\"wo\\"", buckets = 1024 }' in text
    assert 'words = { key = "words", buckets = 1024 }' in text


def test_what_is_null_has_a_default_and_rows_without_a_label_are_left_out(tmp_path):
    data = write(
        tmp_path / "data",
        user_id=[None, *USERS[1:]],
        item=[None, *HISTORY[1:]],
        score=[float("nan"), *map(float, USERS[1:])],
        request=[None, *(f"request {row}" for row in USERS[1:])],
        click=[None, *(row % 2 for row in range(1, ROWS))],
        request_ts=[None, *(datetime(2026, 11, 26) for _ in range(1, ROWS))],
    )
    schema, text = made(data)
    assert schema.field_names == ("user_id", "item", "score", "click", "request")
    assert "[sources.defaults]  # where a value is null or not finite, or files lack the column\nuser_id = 0" in text
    assert 'request = ""' in text
    assert 'click = "drop"' in text
    assert (
        "#   request_ts: times from 2026-11-26 00:00:00 to 2026-11-26 00:00:00: a time, but some rows have none" in text
    )


def test_folders_of_partitions_and_files_that_lack_columns(tmp_path):
    data = tmp_path / "data"
    write(data / "day=2026-11-25", user_id=USERS, item=HISTORY, click=[0.0] * ROWS, country=["a", "b"] * 20)
    write(data / "day=2026-11-26", user_id=USERS, item=HISTORY, age=USERS, day=USERS)
    schema, text = made(data)
    assert schema.field_names == ("user_id", "item", "age")
    assert "#   day, such as 2026-11-25" in text
    assert "#   day: it is a key of the folders, too" in text
    assert "If they are several sources, make a schema file for one of" in text
    assert "#   click: its name says so; some files lack it, and a label has no default" in text
    assert "#   country: text, 2 different; some files lack it, and an expression has no default" in text


def test_what_has_no_place_is_named(tmp_path):
    of_structs = [{"x": b"a"}] * ROWS
    data = write(tmp_path / "data", user_id=USERS, place=of_structs, nothing=pa.nulls(ROWS), blob=[b"a"] * ROWS)
    schema, text = made(data)
    assert schema == Schema(context=("user_id",))
    for name in ("place.x", "nothing", "blob"):
        assert f"#   {name}: " in text
    out = data.parent / "other.toml"
    document = answered("init", data, "--out", out)
    assert [each["role"] for each in document["columns"]] == ["context", None, None, None]
    assert (document["rows"], document["out"]) == (ROWS, str(out))


def test_fields_of_sessions_are_found_by_their_paths(tmp_path):
    """Fields of one list of structs are one sequence; two structs whose fields end alike keep their whole paths."""
    sessions = [
        [{"item_id": item, "price": 0.5, "at": {"shop": "ab"[item % 2]}} for item in history] for history in HISTORY
    ]
    data = write(tmp_path / "data", user=[{"id": user} for user in USERS], page=[{"id": 3}] * ROWS, session=sessions)
    schema, text = made(data)
    assert schema == Schema(
        sequences=(Sequence("uih", ("item_id", "shop"), floats=("price",)),), context=("user.id", "page.id")
    )
    assert 'item_id = "session.item_id"\n' in text
    assert 'shop = { key = "session.at.shop", buckets = 1024 }\n' in text
    assert '"user.id" =' not in text
    source = sources_from_toml(data.parent / "schema.toml")
    with FreeScaleDataLoader(source, schema, batch_size=ROWS, rank=0, world_size=1) as loader:
        (batch,) = loader
    assert batch.features["item_id"].values().tolist() == [item for history in HISTORY for item in history]
    assert batch.features["user.id"].values().tolist() == USERS
    inferred = Schema.infer(data)
    assert inferred.sequences == (Sequence("uih", ("session.item_id",), floats=("session.price",)),)


def test_lists_of_dictionaries_in_several_row_groups(tmp_path):
    """pyarrow joins none of them; another file has the same texts without a dictionary."""
    texts = [[f"item {each}" for each in row] for row in HISTORY]
    encoded = pa.array(texts, pa.list_(pa.dictionary(pa.int32(), pa.string())))
    sessions = pa.array(
        [[{"sku": each, "price": 0.5} for each in row] for row in texts],
        pa.list_(pa.struct({"sku": pa.dictionary(pa.int32(), pa.string()), "price": pa.float64()})),
    )
    folder = write(tmp_path / "data", item=texts, session=sessions)
    write_file(folder / "b.parquet", {"item": encoded, "session": sessions}, group=7)
    schema, text = made(folder)
    assert schema == Schema(sequences=Sequence("uih", ("item", "sku"), floats=("price",)))
    assert text.count("texts, 6 different") == 2
    assert "Guessed by `freescale init` from 80 rows of 2 of 2 files" in text


def test_names_with_ends_of_lines_and_spaces(tmp_path):
    """They stand in comments, too, of which each has one line; the command that is named is that of a shell."""
    columns = {"ids\nof it": HISTORY, "a\nb]": [b"x"] * ROWS, "\x7f\r": [b"y"] * ROWS, "user": USERS}
    write(tmp_path / "my data" / "day=a%0Ab", **columns)
    schema, text = made(tmp_path / "my data")
    assert schema.sequences[0].fields == ("ids\nof it",)
    assert "#   a\\nb]: " in text
    assert "#   \\x7f\\r: " in text
    assert "#   day, such as a\\nb\n" in text
    assert f"`freescale check '{tmp_path / 'my data'}' --schema {tmp_path / 'schema.toml'}`" in text


def test_files_are_looked_at_all_over_the_folder(tmp_path):
    """The first lists are empty in all of its first files."""
    for number in range(20):
        lists = [[]] * ROWS if number < 9 else HISTORY
        write(tmp_path / "data" / f"part-{number:02d}", item=lists, other=[each[:1] for each in lists])
    schema, text = made(tmp_path / "data")
    assert [group.fields for group in schema.sequences] == [("item",), ("other",)]
    assert "from 280 rows of 7 of 20 files" in text


def test_relative_paths_are_seen_from_the_schema_file(tmp_path, monkeypatch):
    write(tmp_path / "data", user_id=USERS)
    monkeypatch.chdir(tmp_path)
    ran("init", "data", "--out", "schemas/one.toml")
    assert 'paths = ["../data"]' in Path("schemas/one.toml").read_text()
    ran("check", "--schema", "schemas/one.toml")


def test_a_file_that_is_there_stays_without_force(tmp_path):
    data = write(tmp_path / "data", user_id=USERS)
    (tmp_path / "schema.toml").write_text("mine")
    said = refused("init", data, "--out", tmp_path / "schema.toml")
    assert "is there already: give another --out, or --force to replace it" in said
    assert (tmp_path / "schema.toml").read_text() == "mine"
    made(data, "--force")


def test_files_of_which_no_schema_comes(tmp_path):
    def said(folder):
        found = refused("init", tmp_path / folder, "--out", tmp_path / "schema.toml")
        assert not (tmp_path / "schema.toml").exists()
        return found

    write(tmp_path / "nested", names=[[["a"]]] * ROWS)
    assert "no column that a sample can be made of: names: " in said("nested")
    write(tmp_path / "empty", user_id=pa.array([], pa.int64()))
    assert "no file has a row to look at" in said("empty")
    write(tmp_path / "types" / "one", user_id=USERS)
    write(tmp_path / "types" / "other", user_id=["a"] * ROWS)
    write(tmp_path / "names" / "one", user_id=USERS, item=HISTORY)
    write(tmp_path / "names" / "other", uid=USERS, items=HISTORY)
    for folder, told in (("types", "user_id"), ("names", "one/a.parquet and other/a.parquet have no columns")):
        found = said(folder)
        assert told in found
        assert "so they are several sources" in found
    whole = (write(tmp_path / "damaged", user=USERS, ids=HISTORY) / "a.parquet").read_bytes()
    for bad in (b"no Parquet", whole[: len(whole) // 2], whole[:4] + b"\xff" * 200 + whole[204:]):
        (tmp_path / "damaged" / "b.parquet").write_bytes(bad)
        found = said("damaged")
        assert "b.parquet: " in found
        assert "Parquet" in found
