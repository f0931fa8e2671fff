"""The generated sets: statistics, determinism, layout, and the command."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tools_kit import answered, ran, refused

from freescale_tools.check.command import load
from freescale_tools.check.source_check import SourceCheck
from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal
from freescale_tools.write.synth import presets as synth
from freescale_tools.write.synth.command import from_profile
from freescale_tools.write.synth.presets import Constant, Lengths

GOLDEN = ["101e78a68c1baee9", "6f2f78a02f7e303f", "69e1ee148ab37700", "7c4545e9652d45cc", "d28bc9b4f539925a"]


def digest(path):
    """Of the values, whatever the file's layout; of columns made by exp or log only the lengths, as CPUs round them."""
    rounded = {"item_ids", "items", "candidate_ids", "age_days", "age"}
    table, hashed = pq.read_table(path), hashlib.blake2b(digest_size=8)
    for name in table.schema.names:
        column = table[name].combine_chunks()
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            hashed.update(np.asarray(pc.list_value_length(column).cast(pa.int64())).tobytes())
            column = column.flatten()
        if name not in rounded:
            hashed.update(np.asarray(column).tobytes())
    return hashed.hexdigest()


def test_presets_never_change_their_values(tmp_path):
    """Figures of different versions are compared: the same seed must go on giving the same values."""
    reference = synth.reference_set(tmp_path, files=2, rows_per_file=300, row_group_rows=128, seed=3)
    demo = synth.demo_set(tmp_path, rows=60, row_group_rows=16, seed=3)
    found = [digest(path) for path in (*reference, demo.site[0], demo.partner[1], demo.users)]
    assert found == GOLDEN


def test_files_with_the_same_recipe_are_kept_and_others_replaced(tmp_path):
    (path,) = synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=1)
    written = path.stat().st_mtime_ns
    synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=1)
    assert path.stat().st_mtime_ns == written
    values = pq.read_table(path)
    synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=2)
    assert pq.read_table(path) != values
    path.write_bytes(b"PAR1 not a footer")
    synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=1)
    assert pq.read_table(path) == values
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_reference_set_is_laid_out_as_described(tmp_path):
    (path,) = synth.reference_set(tmp_path, files=1, rows_per_file=500, row_group_rows=200)
    columns = synth.ReferenceColumns()
    file = pq.ParquetFile(path)
    assert (len(file.schema_arrow), len(columns.read)) == (67, 27)
    assert set(columns.read) <= set(file.schema_arrow.names)
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [200, 200, 100]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    table = file.read()
    past = [table[name].combine_chunks() for name in columns.sequence]
    assert all(column.type == pa.list_(pa.int64()) for column in past)
    assert all(column.offsets.equals(past[0].offsets) for column in past)
    ids, labels = (table[name].combine_chunks() for name in (*columns.candidates, columns.label))
    assert ids.offsets.equals(labels.offsets)
    counts = np.diff(ids.offsets)
    assert (counts.min() >= 1, counts.max() <= 50) == (True, True)
    for row in table.select(["timestamps", "request_ts"]).to_pylist():
        assert (np.diff([*row["timestamps"], row["request_ts"]]) > 0).all(), "times rise and end before the request"
    content = bytearray(path.read_bytes())
    column = file.metadata.row_group(0).column(7)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC checksum"):
        pq.read_table(path, page_checksum_verification=True)


def test_an_early_end_leaves_no_half_file(tmp_path):
    told = []

    def stop(rows):
        told.append(rows)
        if sum(told) > 350:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth.reference_set(tmp_path, files=3, rows_per_file=300, row_group_rows=100, advance=stop)
    (path,) = tmp_path.iterdir()
    assert path.name == "reference-00000-of-00003.parquet"
    assert "cannot write to" in refused("synth", "demo", path / "below", "--scale", 0.01, status=1)


@pytest.mark.parametrize(
    ("drawn", "median", "p95", "largest"),
    [
        (Lengths(), 180, 1200, 21_000),
        (Lengths(median=400, p95=3000, clip=9000), 400, 3000, 9000),
        (Constant(length=17), 17, 17, 17),
    ],
    ids=str,
)
def test_distributions_have_their_quantiles(drawn, median, p95, largest):
    lengths = drawn.draw(np.random.default_rng(0), 400_000)
    assert lengths.dtype == np.int64
    assert np.median(lengths) == pytest.approx(median, rel=0.02)
    assert np.percentile(lengths, 95) == pytest.approx(p95, rel=0.02)
    assert lengths.max() == largest
    assert lengths.min() >= 0


def profile(path, **sequences):
    path.write_text(json.dumps({"version": 1, "kind": "profile", "sequences": sequences}))
    return path


def test_lengths_of_a_profile(tmp_path):
    found = {"histogram": {"lengths": [3, 50], "counts": [1, 3]}}
    path = profile(tmp_path / "profile.json", items={"histogram": None}, clicks=found)
    drawn = from_profile(tmp_path, "clicks").draw(np.random.default_rng(0), 10_000)
    assert set(drawn) == {3, 50}
    assert (drawn == 50).mean() == pytest.approx(0.75, abs=0.02)
    other = profile(tmp_path / "other.json", clicks={"histogram": {"lengths": [3, 51], "counts": [1, 3]}})
    assert repr(from_profile(other, None)) != repr(from_profile(path, "clicks"))
    profile(tmp_path / "empty.json")
    for name, sequence, message in (
        ("profile.json", None, "a quick profile has no histogram"),
        ("profile.json", "nope", "there are items, clicks"),
        ("empty.json", None, "not a profile with sequences"),
        ("no.json", None, r"no\.json"),
    ):
        with pytest.raises(UsageError, match=message):
            from_profile(tmp_path / name, sequence)


SMALL = ("--sources", 2, "--files", 2, "--rows", 30, "--row-group-rows", 16)


def test_the_command_writes_sources_that_fit_the_schema_beside_them(tmp_path):
    document = answered("synth", "sources", tmp_path, *SMALL, "--median", 20, "--p95", 60, "--max", 100)
    assert (document["rows"], len(document["files"])) == (120, 5)
    schema, sources = load(str(tmp_path / "schema.toml"), [])
    assert len(sources) == 2
    for index, source in enumerate(sources):
        check = SourceCheck(source, schema, index=index)
        with Terminal() as terminal, terminal.progress("checking") as progress:
            assert (check.rows, check.run(progress)) == (60, [])
        check.close()
    first = pq.ParquetFile(tmp_path / "source-0" / "source-0-00000-of-00002.parquet")
    assert first.num_row_groups == 2
    assert pc.max(pc.list_value_length(first.read()["item_ids"])).as_py() <= 100


@pytest.mark.parametrize(("preset", "scale", "files", "rows"), [("demo", 0.01, 7, 240), ("reference", 0.001, 8, 200)])
def test_the_command_writes_presets_and_lists_their_files(tmp_path, preset, scale, files, rows):
    done = ran("synth", preset, tmp_path, "--scale", scale)
    written = list(tmp_path.rglob("*.parquet"))
    assert sorted(done.stdout.split()) == sorted(map(str, written))
    assert len(written) == files
    assert sum(pq.read_metadata(path).num_rows for path in written if "users" not in path.name) == rows


def test_other_lengths_are_other_files(tmp_path):
    path = tmp_path / "source-0" / "source-0-00000-of-00002.parquet"
    stamps = []
    for length in (5, 5, 6):
        ran("synth", "sources", tmp_path, *SMALL, "--lengths", "constant", "--median", length)
        assert set(pc.list_value_length(pq.read_table(path)["actions"]).to_pylist()) == {length}
        stamps.append(path.stat().st_mtime_ns)
    assert (stamps[0] == stamps[1], stamps[1] == stamps[2]) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--rows", 5), "--rows: only for `synth sources`"),
        (("reference", "--lengths", "constant", "--p95", 7), "--lengths, --p95: only for"),
        (("sources", "--scale", 2), "--scale is for demo and reference"),
        (("sources", "--row-group-rows", 0), "--row-group-rows must be at least 1"),
        (("sources", "--lengths", "constant", "--max", 5), "--lengths constant takes --median, not --max"),
        (("sources", "--lengths", "constant", "--median", -5), "--lengths constant: need a length of 0 or more"),
        (("sources", "--median", 9, "--p95", 5), "need 0 < --median <= --p95 <= --max"),
        (("sources", "--lengths-from", "x.json", "--max", 5), "leave out --max"),
        (("sources", "--sequence", "a"), "give --lengths-from"),
        (("sources", "--seed", -1), "--seed must be 0 or more"),
        (("demo", "--scale", 0), "--scale must be above 0"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_usage_is_refused(tmp_path, arguments, message):
    assert message in refused("synth", arguments[0], tmp_path / "out", *arguments[1:])
    assert not (tmp_path / "out").exists()
