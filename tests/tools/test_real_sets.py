"""The sets of real data, where they are there: what is found in them and measured is what their READMEs say."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from freescale_tools.demo.discover import discover
from freescale_tools.profile.measure import Columns, full, quick
from freescale_tools.scan.files import open_files

DATA = Path(os.environ.get("FREESCALE_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
# Their quantiles are between rows where ours are lengths that occur.
REAL = {
    "oss_events": {"rows": 165_838, "events": 3_450_378, "max": 87_597, "p50": 2, "p90": 12, "p99": 178, "top1": 0.734},
    "online_retail": {"rows": 4_372, "events": 406_829, "max": 7_983, "p50": 42, "p90": 212, "p99": 674, "top1": 0.165},
}
FIELDS = {"oss_events": ["item_ids", "timestamps", "actions"], "online_retail": ["item_ids", "timestamps"]}

pytestmark = [pytest.mark.long, pytest.mark.parametrize("name", REAL)]


@pytest.fixture
def folder(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not there; FREESCALE_DATA names the folder of the real sets")
    return DATA / name


def test_a_profile(folder: Path, name: str) -> None:
    paths, known = [str(folder / "interactions-*.parquet")], REAL[name]
    files = open_files(paths)
    columns = Columns(sequences=("item_ids", "timestamps"))
    document = full(files, columns, paths=paths)
    items, times = document["sequences"].values()
    assert items == times
    found = {key: items[key] for key in ("rows", "events", "max")} | items["quantiles"]
    assert {key: found[key] for key in known if key != "top1"} == {k: known[k] for k in known if k != "top1"}
    assert items["top1_share"] == pytest.approx(known["top1"], abs=0.002)
    assert (items["null"], items["empty"], document["skipped"]) == (0, 0, [])
    place = items["longest"][0]
    row = pq.read_table(folder / place["file"], columns=["item_ids"])["item_ids"][place["row"]]
    assert len(row) == place["length"] == known["max"]
    counted = quick(files, columns, paths=paths)["sequences"]["item_ids"]
    same = ("rows", "events", "mean", "per_file")
    assert {key: counted[key] for key in same} == {key: items[key] for key in same}


def test_the_demo_finds_histories_and_requests(folder: Path, name: str) -> None:
    data = discover(folder)
    assert [feature.name for feature in data.history] == FIELDS[name]
    assert [feature.name for feature in data.history if feature.divide > 1] == ["timestamps"]
    (join,) = data.sources[0].join
    assert all(Path(path).name.startswith("requests") for path in data.sources[0].paths)
    assert (join.on, join.at, join.time) == ("user_id", "ts", "timestamps")
    assert all(Path(path).name.startswith("interactions") for path in join.source.paths)
