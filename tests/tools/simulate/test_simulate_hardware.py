"""Hardware files: what is bundled, what is refused, and how long exchanges take."""

import dataclasses
from importlib import resources

import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.simulate.hardware.parameters import bundled, load_hardware, numbers
from freescale_tools.simulate.schedule.durations import all_reduce, exchange

H100 = load_hardware("h100-ib")
IDEAL = dataclasses.replace(
    H100, exchange_efficiency=1.0, allreduce_efficiency=1.0, exchange_latency=0.0, peer_latency=0.0
)


@pytest.fixture
def text():
    return (resources.files("freescale_tools.simulate.hardware") / "h100-ib.toml").read_text()


def test_every_bundled_number_has_a_unit_and_a_source():
    assert bundled() == ["h100-ib", "h200-nvl"]
    for name in bundled():
        parameters = load_hardware(name).parameters()
        assert {one["name"] for one in parameters} == {field.name for field in numbers()}
        for one in parameters:
            assert one["source"].startswith(("paper", "NVIDIA", "measured", "assumed")), one


def test_a_file_by_its_path_is_read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('name = "h100-ib"', 'name = "mine"').replace("value = 25.0", "value = 50.0"))
    assert (load_hardware(path).name, load_hardware(str(path)).network) == ("mine", 50.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[network]", "[netwrok]"), r"'netwrok' is not .* mean 'network'\?; \[network\] is missing \(GB/s\)"),
        (('unit = "TFLOP/s"', 'unit = "GFLOP/s"'), r"\[peak_flops\] is in 'GFLOP/s': convert it to 'TFLOP/s'"),
        (("value = 0.4", "value = 1.4"), "flops_efficiency = 1.4 share: above 0, at most 1 is needed"),
        (("value = 450.0", "value = 0.0"), "nvlink = 0 GB/s: above 0 is needed"),
        (("value = 450.0", "value = inf"), "nvlink = inf: a finite number"),
        (("value = 450.0", 'value = "fast"'), "nvlink = 'fast': a finite number"),
        (("value = 450.0\n", ""), r"\[nvlink\] has source, unit: value, unit and source"),
        (("value = 450.0", "value = 450.0\nnote = 1"), r"\[nvlink\] has note, source, unit, value"),
        (('source = "NVIDIA H100 SXM data sheet: HBM3"', 'source = " "'), r"\[memory\] has no source"),
        (('name = "h100-ib"', ""), "name is missing"),
        (("value = 8\n", "value = 2.5\n"), "gpus_per_host = 2.5: a whole number"),
        (("value = 8\n", "value = = 8\n"), "hardware .*mine.toml: "),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path, text, change, message):
    assert change[0] in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(UsageError, match=message):
        load_hardware(path)


def test_unknown_names_list_what_there_is():
    with pytest.raises(UsageError, match="'b300': give h100-ib, h200-nvl, or the path"):
        load_hardware("b300")


def test_nvlink_reaches_only_into_a_host():
    with pytest.raises(ValueError, match="gpus_per_nvlink = 16 is above gpus_per_host = 8"):
        dataclasses.replace(H100, gpus_per_nvlink=16)


def test_exchanges_take_what_their_slowest_path_takes():
    gigabyte = 1e9
    assert exchange(IDEAL, gigabyte, 1) == 0
    assert exchange(IDEAL, gigabyte, 8) == pytest.approx(1e3 * 7 / 8 / 450)
    assert exchange(IDEAL, gigabyte, 64) == pytest.approx(1e3 * 56 / 64 / 25)
    assert exchange(IDEAL, gigabyte, 8, staged=True) == pytest.approx(1e3 * 7 / 8 / 64)
    assert exchange(IDEAL, gigabyte, 64, staged=True) == pytest.approx(1e3 * 56 / 64 / 25)
    bridged = dataclasses.replace(IDEAL, gpus_per_nvlink=4)
    assert exchange(bridged, gigabyte, 8) == pytest.approx(1e3 * 4 / 8 / 64)
    late = dataclasses.replace(IDEAL, exchange_latency=30.0, peer_latency=2.0, exchange_efficiency=0.5)
    assert exchange(late, gigabyte, 64) == pytest.approx(2e3 * 56 / 64 / 25 + 0.03 + 63 * 0.002)


def test_all_reduces_share_the_adapters_of_a_host():
    assert all_reduce(IDEAL, 1e9, 1) == 0
    assert all_reduce(IDEAL, 1e9, 8) == pytest.approx(2e3 * 7 / 8 / 450)
    assert all_reduce(IDEAL, 1e9, 64) == pytest.approx(2e3 * 63 / 64 / 200)
    assert all_reduce(dataclasses.replace(IDEAL, gpus_per_nvlink=4), 1e9, 64) == pytest.approx(2e3 * 63 / 64 / 64)
