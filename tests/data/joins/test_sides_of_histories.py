"""Side tables that bring histories."""

import data_kit as kit
import histories
import pytest
from data_kit import write
from histories import SCHEMA, UIH, expected

from fsdata import (
    Join,
    ParquetSource,
)


@pytest.mark.parametrize("side_has", ["everything", "labels", "events"])
def test_side_tables_bring_events_or_their_labels(tmp_path, side_has):
    names = {"everything": UIH.all_fields, "labels": UIH.labels + UIH.id_labels, "events": UIH.fields + UIH.floats}
    joined = names[side_has]
    rows = range(20)
    kept = tuple(name for name in histories.values(0) if name not in joined and name != "row")
    main = write(tmp_path / "main.parquet", histories.table_of(rows, without=joined), group=6)
    found = range(19) if side_has == "everything" else rows
    table = write(tmp_path / "side.parquet", histories.table_of(found, without=kept))
    side = ParquetSource(table, defaults=dict.fromkeys(joined, 0))
    source = ParquetSource(main, join=[Join(side, on="row", fields=joined)])
    samples = sorted(kit.read(source, SCHEMA, shuffle=True), key=lambda sample: sample["row"])
    assert samples[: len(found)] == [expected(row) for row in found]
    if side_has == "everything":  # a key without a match: an empty history
        assert samples[19] == expected(19) | {name: [] for name in joined}
