"""Tensors of any kind in a batch: whether they were written to, read in their own memory once."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from odd_tensors import ODD, SAMPLES
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.loop import tensors
from fscomm.loop.kjt_paths import BatchSnapshot, find
from fscomm.loop.moving import Moving, to_device
from fscomm.loop.tensors import contents, equal
from fscomm.parts.batch_parts import cut_batch
from fscomm.recipes.search import recipe
from fscomm.tables.torchrec.features import make_features

HOST = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(prototype|beta|invariant|deprecated).*:UserWarning"
)  # of torch, for its own


def kjt() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["a"], torch.arange(12), lengths=torch.full((SAMPLES,), 2))


@pytest.mark.parametrize("kind", ODD)
def test_a_write_into_any_kind_of_tensor_is_noticed(kind: str) -> None:
    make, write = ODD[kind]
    tensor = make()
    snapshot = BatchSnapshot({"x": [tensor], "y": make()})
    assert not snapshot.changed()
    write(tensor)
    assert snapshot.changed()


@pytest.mark.parametrize("kind", ODD)
def test_any_kind_of_tensor_may_lie_beside_the_ids(kind: str) -> None:
    """While the ids are looked for, whatever they are made of, and while the batch moves."""
    odd, ids = ODD[kind][0](), kjt()
    batch = {"odd": odd, "ids": ids.values(), "lengths": ids.lengths()}
    assert find(batch, ids) == []
    found, missing = recipe(batch, ids, make=make_features)
    assert missing == []
    assert found is not None
    assert torch.equal(found.read(batch).values(), ids.values())
    assert not equal(odd, ids.values())
    assert equal(odd, odd)
    Moving(HOST).end(Moving(HOST).begin([odd] if kind != "of a class that refuses" else []))


def test_what_holds_nothing_does_not_move() -> None:
    nothing = torch.empty(3, device="meta")
    assert to_device([nothing], HOST)[0] is nothing


CANNOT_BE_CUT = {"sparse blocks", "quantized by channel", "of another layout", "wrapped", "of a class that refuses"}


@pytest.mark.parametrize("kind", ODD)
def test_any_kind_of_tensor_is_cut_by_samples_or_refused_by_name(kind: str) -> None:
    odd = ODD[kind][0]()
    batch = {"ids": kjt(), "odd": odd}
    if kind in CANNOT_BE_CUT:
        with pytest.raises(ValueError, match=r"cannot be cut by samples: give the batch a method parts\(number\)"):
            cut_batch(batch, 2, make_features)
        return
    parts = [part["odd"] for part in cut_batch(batch, 7, make_features)]
    if not odd.dim() or kind in ("meta", "fake"):
        assert all(odd.dim() == 0 or part.shape == (part.size(0),) for part in parts)
        return
    assert [part.size(0) for part in parts] == [part["ids"].stride() for part in cut_batch(batch, 7, make_features)]
    assert [sample for part in parts for sample in plain(part)] == plain(odd)
    assert all(part.layout == odd.layout for part in parts)


def plain(tensor: torch.Tensor) -> list[Any]:
    """[samples]"""
    if tensor.is_nested:
        return [each.tolist() for each in tensor.unbind()]
    if tensor.layout is not torch.strided:
        return tensor.to_dense().tolist()
    if tensor.is_quantized:
        return tensor.int_repr().tolist()
    if hasattr(tensor, "get_mask"):
        return list(zip(tensor.get_data().tolist(), tensor.get_mask().tolist(), strict=True))
    return tensor.view(torch.uint8).tolist() if tensor.dtype in (torch.bits8, torch.float8_e4m3fn) else tensor.tolist()


LARGE = 40_000


@pytest.mark.parametrize(
    ("view", "stored"),
    [
        pytest.param(lambda x: x.expand(300, LARGE), LARGE, id="expanded"),
        pytest.param(lambda x: x.view(200, 200).t().unsqueeze(1).expand(200, 50, 200), LARGE, id="a dimension inside"),
        pytest.param(lambda x: x.as_strided((LARGE // 2, 1000), (1, 1)), LARGE // 2 + 999, id="overlapping"),
        pytest.param(lambda x: x.view(200, 200)[:, 7], 200, id="a column"),
        pytest.param(lambda x: x[3].expand(300, 300), 1, id="one number"),
        pytest.param(lambda x: x[:0].view(0, 3), 0, id="nothing"),
    ],
)
def test_memory_is_read_once(view: Any, stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(tensors, "checksum", lambda words: seen.append(len(words)) or 0)
    contents(view(torch.arange(LARGE)))  # of 8 bytes each
    assert sum(seen) == stored


@given(data=st.data())
def test_a_view_is_what_it_refers_to(data: st.DataObject) -> None:
    """A write into one of its elements is noticed, and one into the memory between them is none."""
    base = torch.arange(60, dtype=data.draw(st.sampled_from([torch.int64, torch.int32, torch.uint8])))
    view = base.view(3, 4, 5)
    for dim in range(3):
        start, step = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
        view = view[(slice(None),) * dim + (slice(start, None, step),)]
    view = view.permute(data.draw(st.permutations(range(3))))
    if data.draw(st.booleans()):
        view = view.unsqueeze(1).expand(-1, 4, -1, -1)
    _the_same_at_every_element(base, view, data.draw(st.integers(0, 59)))


@given(sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)), step=st.integers(1, 3), at=st.integers(0, 59))
def test_a_view_whose_rows_overlap(sizes: tuple[int, int], step: int, at: int) -> None:
    base = torch.arange(60)
    _the_same_at_every_element(base, base.as_strided(sizes, (step, step)), at)


def _the_same_at_every_element(base: torch.Tensor, view: torch.Tensor, at: int) -> None:
    before, in_view = contents(view)[1:], at in view
    base.numpy()[at] += 100
    assert (contents(view)[1:] != before) == in_view
