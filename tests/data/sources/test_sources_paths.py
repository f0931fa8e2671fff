"""Fields inside structs and lists of structs, by their paths."""

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kit import DECODERS, column, read, write

from fsdata import CorruptFileError, DataError, ParquetSource, Schema, SchemaError, Sequence

EVENT = pa.struct(
    [
        ("item_id", pa.int64()),
        ("shop", pa.dictionary(pa.int32(), pa.string())),
        ("price", pa.float32()),
        ("tags", pa.list_(pa.int16())),
        ("where", pa.struct([("city.id", pa.int32())])),
    ]
)
SESSIONS = [
    [
        {"item_id": 1, "shop": "a", "price": 0.5, "tags": [1, 2], "where": {"city.id": 7}},
        {"item_id": 2, "shop": None, "price": 1.5, "tags": [], "where": {"city.id": 8}},
    ],
    [],
    [{"item_id": 3, "shop": "b", "price": 2.5, "tags": [3], "where": {"city.id": 9}}],
    [{"item_id": each, "shop": "a", "price": 3.5, "tags": [4], "where": {"city.id": 6}} for each in (4, 5, 6)],
]
USERS = [{"id": 10, "of": {"age": 30}}, {"id": 11, "of": {"age": 31}}, None, {"id": 13, "of": None}]
SCHEMA = Schema(
    sequences=(Sequence("session", ("item_id", "city"), floats=("price",), nested=("tags",)),), context=("user", "age")
)
COLUMNS = {
    "item_id": "session.item_id",
    "city": "session.where.city.id",
    "price": "session.price",
    "tags": "session.tags",
    "user": "user.id",
    "age": "user.of.age",
}
EXPECTED = {
    "item_id": [[1, 2], [], [3], [4, 5, 6]],
    "city": [[7, 8], [], [9], [6, 6, 6]],
    "price": [[0.5, 1.5], [], [2.5], [3.5] * 3],
    "user": [10, 11, -1, 13],
    "age": [30, 31, -2, -2],
    "tags": [[[1, 2], []], [], [[3]], [[4]] * 3],
}
DEFAULTS = {"user": -1, "age": -2}


def table(kind=None, sessions=SESSIONS):
    return pa.table({"session": pa.array(sessions, kind or pa.list_(EVENT)), "user": USERS})


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.parquet", table(), group=3)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", [pa.list_(EVENT), pa.large_list(EVENT)])
def test_fields_of_a_session_are_aligned_lists(tmp_path, kind, decoder):
    path = write(tmp_path / "a.parquet", table(kind), group=3)
    source = ParquetSource(path, columns=COLUMNS, defaults=DEFAULTS, decoder=decoder)
    samples = read(source, SCHEMA)
    for name, expected in EXPECTED.items():
        assert column(samples, name) == expected
    assert sorted(column(read(source, SCHEMA, batch_size=2, shuffle=True), "item_id")) == sorted(EXPECTED["item_id"])


def test_sessions_of_one_size(tmp_path):
    path = write(tmp_path / "a.parquet", table(pa.list_(EVENT, 2), [SESSIONS[0]] * 4))
    samples = read(ParquetSource(path, columns=COLUMNS, defaults=DEFAULTS), SCHEMA)
    assert column(samples, "item_id") == [[1, 2]] * 4


def test_a_field_without_columns_is_found_by_its_own_name(path):
    schema = Schema(sequences=(Sequence("session", ("session.item_id",)),), context=("user.id",))
    samples = read(ParquetSource(path, defaults={"user.id": 0}), schema)
    assert column(samples, "session.item_id") == EXPECTED["item_id"]


def test_nulls_at_every_level_reach_the_policy(tmp_path):
    sessions = [[None, {**SESSIONS[0][0], "item_id": None}], None, [SESSIONS[2][0]], []]
    path = write(tmp_path / "a.parquet", table(sessions=sessions))
    schema = Schema(sequences=(Sequence("session", ("item_id",)),))
    columns = {"item_id": "session.item_id"}

    def items(**options):
        return column(read(ParquetSource(path, columns=columns, **options), schema), "item_id")

    assert items(defaults={"item_id": -1}) == [[-1, -1], [], [3], []]
    assert items(nulls={"item_id": "drop"}) == [[3], []]
    with pytest.raises(DataError, match="row 0: item_id is null at position 0 of the list"):
        items()


def test_expressions_filters_splits_and_types_take_paths(path):
    def items(**options):
        columns = {**COLUMNS, **options.pop("columns", {})}
        samples = read(ParquetSource(path, columns=columns, defaults=DEFAULTS, **options), SCHEMA)
        return column(samples, "item_id")

    shops = {"city": pl.col("session.shop").list.eval(pl.element().hash().fill_null(0) % 10)}
    assert items(columns=shops) == EXPECTED["item_id"]
    assert items(filter=pl.col("session.item_id").list.len() > 1) == [[1, 2], [4, 5, 6]]
    assert items(filter=pl.col("user.of.age") == 31) == [[]]
    parts = [items(split="user.id", keep=keep) for keep in ((0, 0.5), (0.5, 1))]
    assert sorted(parts[0] + parts[1]) == sorted([[1, 2], [], [4, 5, 6]])
    assert items(types={"session.item_id": "int32", "user.id": "int64"}) == EXPECTED["item_id"]
    hashed = {"item_id": pl.col("session.item_id").list.eval(pl.element().hash() % 1000)}
    as_text = {"item_id": pl.col("session.item_id").list.eval(pl.element().cast(pl.String).hash() % 1000)}
    assert items(columns=hashed, types={"session.item_id": "string"}) == items(columns=as_text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("session.item", r"column 'session.item' is missing: session has the fields item_id, shop, price, tags, where"),
        ("session.where.town", r"column 'session.where.town' is missing: session.where has the fields city.id"),
        ("user", r"column 'user' is struct<"),
        ("user.id.x", r"column 'user.id.x' is missing: user has the fields id, of"),
        ("users.id", r"column 'users.id' is missing; give"),
    ],
)
def test_paths_that_lead_nowhere(path, name, message):
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(path, columns={"a": name}), Schema(context=("a",)))


def damage_all_but(path, *kept):
    """Flip a byte in every column chunk but those of the leaf columns `kept`; their pages have checksums."""
    metadata, raw = pq.read_metadata(path), bytearray(path.read_bytes())
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(leaf)
            if chunk.path_in_schema not in kept:
                raw[chunk.dictionary_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("decoder", DECODERS)
def test_only_leaves_that_are_needed_are_read(path, decoder):
    """Others may be damaged."""
    damage_all_but(path, "session.list.element.item_id", "session.list.element.tags.list.element", "user.of.age")
    columns = {name: COLUMNS[name] for name in ("item_id", "tags", "age")}
    schema = Schema(sequences=(Sequence("session", ("item_id",), nested=("tags",)),), context=("age",))
    options = {"columns": columns, "defaults": {"age": -2}, "decoder": decoder}
    for condition, rows in ((None, [0, 1, 2, 3]), (pl.col("session.item_id").list.len() != 1, [0, 1, 3])):
        samples = read(ParquetSource(path, filter=condition, **options), schema)
        for name in ("item_id", "age"):
            assert column(samples, name) == [EXPECTED[name][row] for row in rows]
    with pytest.raises(CorruptFileError):
        read(ParquetSource(path, columns={"user": "user.id"}, decoder=decoder), Schema(context=("user",)))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("nothing", [pa.nulls(2), pa.array([[], None], pa.list_(pa.null()))])
@pytest.mark.parametrize("first", ["a", "c"])
def test_sessions_that_are_null_in_a_whole_file(tmp_path, decoder, nothing, first):
    """They have no type there, and one leaf column. The columns behind them are found, too."""
    write(tmp_path / f"{first}.parquet", {"session": nothing, "user": USERS[:2]})
    write(tmp_path / "b.parquet", table())
    defaults = dict.fromkeys(COLUMNS, 0) | DEFAULTS
    samples = read(ParquetSource(tmp_path, columns=COLUMNS, defaults=defaults, decoder=decoder), SCHEMA)
    none = {name: [[], []] for name in EXPECTED} | {"user": [10, 11], "age": [30, 31]}
    for name, expected in EXPECTED.items():
        assert column(samples, name) == (none[name] + expected if first == "a" else expected + none[name])


class Seen(pa.ExtensionType):
    def __init__(self):
        super().__init__(pa.struct([("shop", pa.string()), ("item_id", pa.int64())]), "seen")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("listed", [False, True])
def test_extension_types_around_structs_are_read_whole(tmp_path, decoder, listed):
    """pyarrow 26 reads no part of one."""
    structs = pa.array([{"shop": "a", "item_id": n} for n in range(4)], Seen().storage_type)
    seen = pa.ExtensionArray.from_storage(Seen(), structs)
    if listed:
        seen = pa.ListArray.from_arrays(pa.array([0, 1, 1, 4, 4], pa.int32()), seen)
    pa.register_extension_type(Seen())
    try:
        of = pa.StructArray.from_arrays([seen, pa.array(range(4))], ["seen", "n"])
        path = write(tmp_path / "a.parquet", {"of": of})
        schema = Schema(sequences=(Sequence("s", ("item_id",)),)) if listed else Schema(context=("item_id",))
        samples = read(ParquetSource(path, columns={"item_id": "of.seen.item_id"}, decoder=decoder), schema)
    finally:
        pa.unregister_extension_type("seen")
    assert column(samples, "item_id") == ([[0], [], [1, 2, 3], []] if listed else [0, 1, 2, 3])
