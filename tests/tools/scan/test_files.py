"""The files of a command: found, named where they are damaged; their leaf columns."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import UnusableColumn, leaf, open_files


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_readable_files_are_opened_and_others_named(tmp_path):
    write(tmp_path / "day=1" / "a.parquet", x=[1, 2, 3])
    write(tmp_path / "day=2" / "b.parquet", x=[4])
    (tmp_path / "day=2" / "c.parquet").write_bytes(b"PAR1 and nothing else in it")
    found = open_files([str(tmp_path)])
    assert [footer.file.partitions for footer in found.footers] == [{"day": "1"}, {"day": "2"}]
    assert (found.rows, found.row_groups) == (4, 2)
    assert found.bytes == sum(path.stat().st_size for path in tmp_path.glob("*/[ab].parquet"))
    assert [one.file for one in found.skipped] == ["day=2/c.parquet"]
    assert "no footer" in found.skipped[0].reason


def test_nothing_readable_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        open_files([str(tmp_path / "no.parquet")])
    (tmp_path / "c.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"none of 1 files is readable: .*begins with"):
        open_files([str(tmp_path / "*.parquet")])


def test_leaves(tmp_path):
    struct = pa.array([{"a": 1, "b": [1.0]}])
    nested = pa.array([[[1]]])
    path = write(tmp_path / "f.parquet", user=[1], items=[[1, 2]], struct=struct, nested=nested)
    footer = open_files([str(path)]).footers[0]
    user, items, inside = (leaf(footer, name) for name in ("user", "items", "struct.b"))
    assert (user.index, user.is_list) == (0, False)
    assert (items.path, items.is_list) == ("items.list.element", True)
    assert inside.is_list
    assert leaf(footer, "item") is None
    with pytest.raises(UnusableColumn, match=r"struct has 2 leaf columns: name one of struct\.a"):
        leaf(footer, "struct")
    with pytest.raises(UnusableColumn, match="lists in lists"):
        leaf(footer, "nested")
