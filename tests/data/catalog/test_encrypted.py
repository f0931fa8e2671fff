"""Files with encrypted columns: the others are read, and these are an error before training. pyarrow would end the
process."""

import base64
import datetime

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from data_kit import DECODERS, lists, load, read

from fsdata import CorruptFileError, ParquetSource, Schema, Sequence

TABLE = pa.table({"user": [1, 2, 3], "items": lists(pa.int64(), [1, 2], [3], [4]), "secret": [7, 8, 9]})
USER, SECRET = Schema(context=("user",)), Schema(context=("secret",))


class OpenKeys(encryption.KmsClient):
    """Keys that anybody can unwrap."""

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


def write_encrypted(path, columns, *, plaintext_footer=True, footer_key="footer", column_key="column"):
    how = encryption.EncryptionConfiguration(
        footer_key=footer_key,
        column_keys={column_key: columns},
        plaintext_footer=plaintext_footer,
        cache_lifetime=datetime.timedelta(minutes=5),
    )
    factory = encryption.CryptoFactory(OpenKeys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE.slice(0, 2))
        writer.write_table(TABLE.slice(2))


@pytest.fixture
def path(tmp_path):
    write_encrypted(tmp_path / "a.parquet", ["secret"])
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("column_key", ["column", "footer"])
def test_columns_that_are_not_encrypted_are_read(tmp_path, decoder, column_key):
    write_encrypted(tmp_path / "a.parquet", ["secret"], column_key=column_key)
    schema = Schema(context=("user",), sequences=[Sequence("uih", fields=("items",))])
    samples = read(ParquetSource(tmp_path, decoder=decoder, filter=pl.col("user") != 2), schema)
    assert samples == [{"user": 1, "items": [1, 2]}, {"user": 3, "items": [4]}]
    constant = read(ParquetSource(tmp_path, decoder=decoder, defaults={"n": 5}), Schema(context=("n",)))
    assert constant == [{"n": 5}] * 3


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (SECRET, {}),
        (USER, {"filter": pl.col("secret") > 7}),
        (USER, {"columns": {"user": pl.col("secret") % 2}}),
        (USER, {"columns": {"user": "secret"}}),
        (USER, {"split": "secret", "keep": (0, 0.5)}),
        (Schema(context=("user",), time="secret"), {}),
    ],
)
def test_whatever_reads_an_encrypted_column_names_file_and_column(path, schema, options):
    with pytest.raises(CorruptFileError, match=r"a\.parquet: column 'secret' is encrypted.* or leave the column out"):
        read(ParquetSource(path, **options), schema)


def test_lists_and_columns_behind_a_struct_are_named_by_their_column(tmp_path):
    write_encrypted(tmp_path / "a.parquet", ["items.list.element"])
    with pytest.raises(CorruptFileError, match="column 'items' is encrypted"):
        read(ParquetSource(tmp_path), Schema(sequences=[Sequence("uih", fields=("items",))]))


def test_encrypted_files_are_skipped_where_errors_are(path):
    pq.write_table(TABLE, path.with_name("b.parquet"))
    source = ParquetSource(path.parent, on_error="skip")
    for schema, rows, skipped in ((SECRET, 3, ["a.parquet"]), (USER, 6, [])):
        batches, loader = load(source, schema)
        assert sum(map(len, batches)) == rows
        assert [each.file for each in loader.skipped] == skipped


def test_an_encrypted_footer_is_an_error_of_its_own(tmp_path):
    write_encrypted(tmp_path / "a.parquet", ["secret"], plaintext_footer=False)
    with pytest.raises(CorruptFileError, match=r"an encrypted Parquet file, .*write it again without encryption"):
        read(ParquetSource(tmp_path), USER)
