"""Histograms of lengths against the plain arrays they stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freescale_tools.scan.histogram import LengthHistogram

lengths = st.lists(st.integers(0, 60), max_size=80).map(lambda given: np.array(given, np.int64))


@given(parts=st.lists(lengths, max_size=4))
def test_merged_is_the_histogram_of_all_rows(parts):
    whole = np.concatenate([np.empty(0, np.int64), *parts])
    merged = LengthHistogram.merged(LengthHistogram.from_lengths(part) for part in parts)
    assert np.repeat(merged.lengths, merged.counts).tolist() == sorted(whole.tolist())
    assert (merged.rows, merged.events, merged.empty) == (len(whole), whole.sum(), (whole == 0).sum())
    assert merged.longest == whole.max(initial=0)
    assert LengthHistogram.from_dict(merged.to_dict()).to_dict() == merged.to_dict()


@given(rows=lengths.filter(len), share=st.floats(0, 1), cap=st.integers(0, 70))
def test_quantiles_top_share_and_cuts(rows, share, cap):
    histogram = LengthHistogram.from_lengths(rows)
    assert histogram.quantile(share) == np.quantile(rows, share, method="inverted_cdf")
    top = np.sort(rows)[::-1][: max(int(np.ceil(share * len(rows))), 1)].sum()
    assert histogram.top_share(share) == pytest.approx(top / max(rows.sum(), 1))
    assert histogram.clipped(cap).to_dict() == LengthHistogram.from_lengths(np.minimum(rows, cap)).to_dict()
    if rows.sum():
        assert histogram.kept_share(cap) == pytest.approx(np.minimum(rows, cap).sum() / rows.sum())


def test_draws_follow_the_counts_and_the_seed():
    histogram = LengthHistogram(lengths=np.array([0, 5, 9]), counts=np.array([1, 2, 7]))
    drawn = histogram.draw(np.random.default_rng(1), 20_000)
    assert set(drawn.tolist()) == {0, 5, 9}
    assert np.bincount(drawn, minlength=10)[[0, 5, 9]] / 20_000 == pytest.approx([0.1, 0.2, 0.7], abs=0.02)
    assert (drawn == histogram.draw(np.random.default_rng(1), 20_000)).all()


def test_an_empty_histogram_answers():
    empty = LengthHistogram.merged([])
    assert (empty.rows, empty.events, empty.mean, empty.longest, empty.quantile(0.5)) == (0, 0, 0.0, 0, 0)
    assert (empty.top_share(0.01), empty.kept_share(5), empty.clipped(5).rows) == (0.0, 1.0, 0)
    with pytest.raises(ValueError, match="no rows"):
        empty.draw(np.random.default_rng(0), 1)


def test_bad_histograms_are_refused():
    for lengths_, counts, message in (
        ([1, 1], [1, 1], "ascend"),
        ([-1, 2], [1, 1], "0 or more"),
        ([1, 2], [1, 0], "above 0"),
        ([1, 2], [1], r"\[2\] and counts \[1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            LengthHistogram(lengths=np.array(lengths_), counts=np.array(counts))
    with pytest.raises(ValueError, match="share from 0 to 1"):
        LengthHistogram.from_lengths(np.arange(3)).quantile(50)
