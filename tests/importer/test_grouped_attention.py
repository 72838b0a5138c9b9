"""GroupQueryAttention (com.microsoft) against another engine: prompts, single steps and chunks, of random shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import grainline
from grainline.base.errors import FeedError, KernelError, ModelError, UnsupportedError
from grainline.importer.model import import_model
from tests.fixtures.models import model
from tests.fixtures.peer import peer_results

INPUTS = (
    "query key value past_key past_value seqlens total cos sin position_ids bias sink".split()
)  # in the operator's order
#: extents that only a run knows, by axis; what a projection or the model's sizes give is known
SYMBOLS = {
    **dict.fromkeys(("query", "key", "value"), ("batch", "length")),
    **dict.fromkeys(("past_key", "past_value"), ("batch", "", "room")),
    "seqlens": ("batch",),
    "mask": ("batch", "total"),
    "position_ids": ("batch", "length"),
    "bias": ("batch", "", "length", "total"),
}


@dataclass(frozen=True)
class Case:
    """`ends`: tokens per sequence when the call is done; S of them are new. `room`: rows of the past, or None."""

    heads: int
    groups: int
    width: int
    length: int
    ends: tuple[int, ...]
    room: int | None
    is_packed: bool = False
    is_rotary: bool = False

    @property
    def is_prompt(self) -> bool:
        return self.length == max(self.ends)


def drawn(rng: np.random.Generator, kind: str) -> Case:
    groups = int(rng.integers(1, 4))
    sizes = {"heads": groups * int(rng.integers(1, 4)), "groups": groups, "width": 16 * int(rng.integers(1, 3))}
    sizes.update(is_packed=bool(rng.integers(2)), is_rotary=bool(rng.integers(2)))
    batch = int(rng.integers(1, 4))
    if kind == "prompt":
        length = int(rng.integers(1, 12))
        ends = (length, *(int(end) for end in rng.integers(1, length + 1, batch - 1)))
        return Case(**sizes, length=length, ends=ends, room=[None, 0, length + 3][int(rng.integers(3))])
    if kind == "step":
        ends = tuple(int(end) for end in rng.integers(2, 20, batch))
        return Case(**sizes, length=1, ends=ends, room=max(ends) - 1 + [0, 6][int(rng.integers(2))])
    length = int(rng.integers(2, 6))
    end = length + int(rng.integers(1, 9))
    return Case(**sizes, length=length, ends=(end,), room=end - length + [0, 6][int(rng.integers(2))])


def feeds_of(rng: np.random.Generator, case: Case) -> dict[str, np.ndarray]:
    def f32(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    batch, total = len(case.ends), max(case.ends)
    feeds: dict[str, np.ndarray] = {}
    if case.is_packed:
        feeds["query"] = f32(batch, case.length, (case.heads + 2 * case.groups) * case.width)
    else:
        for name, count in (("query", case.heads), ("key", case.groups), ("value", case.groups)):
            feeds[name] = f32(batch, case.length, count * case.width)
    if case.room is not None:
        for name in ("past_key", "past_value"):
            feeds[name] = f32(batch, case.groups, case.room, case.width)
    feeds["seqlens"] = np.array(case.ends, np.int32) - 1
    feeds["total"] = np.array(total, np.int32)
    if case.is_rotary:
        angles = rng.uniform(0, 6, (total + 4, case.width // 2))
        feeds["cos"], feeds["sin"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return feeds


def built(case: Case, feeds: dict[str, np.ndarray], **more: Any) -> Any:
    """With a total from a mask's extent, as exporters write it, where the feeds hold a mask; else it is an input."""
    order = [name if name in feeds or (name == "total" and "mask" in feeds) else "" for name in INPUTS]
    while not order[-1]:
        order.pop()
    attributes = {"num_heads": case.heads, "kv_num_heads": case.groups, "do_rotary": int(case.is_rotary), **more}
    results = ["y", "present_key", "present_value"]
    node = helper.make_node("GroupQueryAttention", order, results, name="only", domain="com.microsoft", **attributes)
    nodes, weights = [node], {}
    if "mask" in feeds:
        weights = {"one": np.array(1, np.int64)}
        nodes = [
            helper.make_node("Shape", ["mask"], ["extents"]),
            helper.make_node("Gather", ["extents", "one"], ["wide"]),
            helper.make_node("Cast", ["wide"], ["total"], to=6),
            node,
        ]
    proto = model(nodes, feeds, results, weights, symbolic=False)
    for info in proto.graph.input:
        for axis, extent in enumerate(SYMBOLS.get(info.name, ())):
            if extent:
                info.type.tensor_type.shape.dim[axis].dim_param = extent
    return proto


def check(case: Case, feeds: dict[str, np.ndarray], **more: Any) -> None:
    """Rows of padding mean nothing; the cache holds them all the same."""
    proto = built(case, feeds, **more)
    data = proto.SerializeToString()
    found, right = grainline.load(data).run(feeds), peer_results(data, feeds)
    assert [array.shape for array in found] == [array.shape for array in right], case
    for mine, other in zip(found[1:], right[1:], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6, err_msg=str(case))
    for index, end in enumerate(case.ends):
        rows = slice(0, end if case.is_prompt else None)
        np.testing.assert_allclose(
            found[0][index, rows], right[0][index, rows], rtol=1e-4, atol=1e-5, err_msg=str(case)
        )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["prompt", "step", "chunk"])
def test_random_shapes(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(kind)])
    case = drawn(rng, kind)
    check(case, feeds_of(rng, case))


VARIANTS: dict[str, dict[str, Any]] = {
    "a window": {"local_window_size": 3},
    "a window of one": {"local_window_size": 1},
    "a soft cap": {"softcap": 2.0},
    "a smooth softmax": {"smooth_softmax": 1},
    "a scale": {"scale": 0.3},
    "all": {"local_window_size": 4, "softcap": 1.5, "smooth_softmax": 1, "scale": 0.4},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["prompt", "step", "chunk"])
def test_attributes(kind: str, variant: str) -> None:
    rng = np.random.default_rng([len(kind), len(variant)])
    case = drawn(rng, kind)
    check(case, feeds_of(rng, case), **VARIANTS[variant])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["prompt", "step", "chunk"])
def test_bias_sink_and_positions(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 5, len(kind)])
    case = replace(drawn(rng, kind), is_rotary=True)
    feeds = feeds_of(rng, case)
    shape = (len(case.ends), case.length)
    feeds["position_ids"] = rng.integers(0, 5, shape)
    feeds["cos"], feeds["sin"] = (rng.standard_normal((20, case.width // 2)).astype(np.float32) for _ in "ab")
    feeds["bias"] = rng.standard_normal((shape[0], 1, shape[1], int(feeds["total"]))).astype(np.float32)
    feeds["sink"] = rng.standard_normal(case.heads).astype(np.float32)
    check(case, feeds, softcap=3.0)


@pytest.mark.parametrize("is_interleaved", [0, 1])
@pytest.mark.parametrize("share", [1, 2])
def test_turning_pairs_and_part_of_the_columns(share: int, is_interleaved: int) -> None:
    rng = np.random.default_rng(6)
    case = Case(4, 2, 32, 3, (8,), 5, is_rotary=True)
    feeds = feeds_of(rng, case)
    for name in ("cos", "sin"):
        feeds[name] = feeds[name][:, : case.width // 2 // share].copy()
    check(case, feeds, rotary_interleaved=is_interleaved)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["prompt", "step", "chunk"])
def test_a_total_from_the_extent_of_a_mask_leaves_nothing_to_the_host(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(kind)])
    case = drawn(rng, kind)
    feeds = feeds_of(rng, case)
    feeds["mask"] = np.ones((len(case.ends), int(feeds.pop("total"))), np.int64)
    assert not [node for node in import_model(built(case, feeds)).nodes if node.op == "host"]
    check(case, feeds)


def test_one_model_takes_prompts_and_steps_in_turn() -> None:
    """What a caller does: the present of one call is the past of the next."""
    rng = np.random.default_rng(8)
    sizes = {"heads": 4, "groups": 2, "width": 16, "is_rotary": True}
    first = Case(**sizes, length=5, ends=(5, 3), room=0)
    feeds = feeds_of(rng, first)
    feeds["mask"] = np.ones((2, int(feeds.pop("total"))), np.int64)
    feeds["cos"], feeds["sin"] = (rng.standard_normal((16, 8)).astype(np.float32) for _ in "ab")
    data = built(first, feeds).SerializeToString()
    mine, other = grainline.load(data), None
    for turn in range(6):
        found, other = mine.run(feeds), peer_results(data, feeds)
        rows = [slice(0, 3 if turn == 0 and index == 1 else None) for index in range(2)]
        for index in range(2):
            np.testing.assert_allclose(found[0][index, rows[index]], other[0][index, rows[index]], rtol=1e-4, atol=1e-5)
        new = feeds_of(rng, replace(first, length=1))
        feeds = {**feeds, **{name: new[name] for name in ("query", "key", "value")}}
        feeds.update(past_key=found[1], past_value=found[2], seqlens=feeds["seqlens"] + 1)
        feeds["mask"] = np.ones((2, 6 + turn), np.int64)


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"executor": "multi-worker", "workers": 3}, {"device": "discrete"}]
)
def test_executors_and_threads_give_the_same_bits_and_empty_calls_work(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(15)
    case = Case(4, 2, 16, 3, (8, 8), 5, is_rotary=True)
    feeds = feeds_of(rng, case)
    feeds["mask"] = np.ones((2, int(feeds.pop("total"))), np.int64)
    data = built(case, feeds).SerializeToString()
    one, other = grainline.load(data, threads=1), grainline.load(data, **options)
    no_batch = {name: a if name in ("cos", "sin") else a[:0] for name, a in feeds.items()}
    no_tokens = {**feeds, **{name: feeds[name][:, :0] for name in ("query", "key", "value")}}
    no_tokens.update(seqlens=feeds["seqlens"] - 3, mask=np.ones((2, 5), np.int64))
    for given, shape in ((feeds, (2, 3, 64)), (no_batch, (0, 3, 64)), (no_tokens, (2, 0, 64)), (feeds, (2, 3, 64))):
        found, right = other.run(given), one.run(given)
        assert found[0].shape == shape
        for mine, same in zip(found, right, strict=True):
            np.testing.assert_array_equal(mine, same)


def test_half_precision() -> None:
    rng = np.random.default_rng(9)
    case = Case(4, 2, 16, 1, (7, 5), 6, is_rotary=True)
    feeds = feeds_of(rng, case)
    halves = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in feeds.items()}
    found = grainline.load(built(case, halves).SerializeToString()).run(halves)
    right = grainline.load(built(case, feeds).SerializeToString()).run(feeds)
    for mine, wide in zip(found, right, strict=True):
        assert mine.dtype == np.float16
        np.testing.assert_allclose(mine, wide, rtol=5e-3, atol=5e-3)


def test_a_sequence_longer_than_its_past_is_an_error_and_the_next_call_works() -> None:
    rng = np.random.default_rng(10)
    case = Case(2, 1, 16, 1, (6, 4), 5)
    feeds = feeds_of(rng, case)
    mine = grainline.load(built(case, feeds).SerializeToString())
    right = mine.run(feeds)
    with pytest.raises(KernelError, match="only"):
        mine.run({**feeds, "seqlens": np.array([8, 3], np.int32)})
    for one, other in zip(mine.run(feeds), right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("length", "ends", "total"), [(1, 0, 6), (1, -4, 6), (3, 2, 6), (3, 3, 2), (1, 6, 4), (1, 5, 0)]
)
def test_tokens_that_do_not_fit_the_total_are_an_error(length: int, ends: int, total: int) -> None:
    rng = np.random.default_rng(16)
    case = Case(2, 1, 16, length, (6, 6), 5)
    feeds = feeds_of(rng, case)
    mine = grainline.load(built(case, feeds).SerializeToString())
    right = mine.run(feeds)
    with pytest.raises(KernelError, match="only"):
        mine.run({**feeds, "seqlens": np.array([5, ends - 1], np.int32), "total": np.array(total, np.int32)})
    for one, other in zip(mine.run(feeds), right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("total", [0, -5])
def test_a_total_of_nothing_is_an_error_of_the_model(total: int) -> None:
    case = Case(2, 1, 16, 1, (6, 4), 5)
    feeds = feeds_of(np.random.default_rng(17), case)
    proto = built(case, feeds)
    proto.graph.input.remove(next(info for info in proto.graph.input if info.name == "total"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(total, np.int32), "total"))
    with pytest.raises(ModelError, match="only"):
        grainline.load(proto.SerializeToString())


@pytest.mark.parametrize("name", ["past_value", "seqlens", "value"])
def test_feeds_that_do_not_fit_are_errors(name: str) -> None:
    rng = np.random.default_rng(11)
    case = Case(2, 1, 16, 1, (6, 4), 5)
    feeds = feeds_of(rng, case)
    mine = grainline.load(built(case, feeds).SerializeToString())
    with pytest.raises(FeedError, match=name):
        mine.run({**feeds, name: feeds[name][:1]})


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in ("seqlens", "total")])
@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.bool_, np.float16])
def test_operands_of_another_type_are_named(dtype: type, name: str) -> None:
    case = Case(2, 1, 16, 1, (6, 4), 5, is_rotary=True)
    feeds = feeds_of(np.random.default_rng(13), case)
    feeds["bias"], feeds["sink"] = np.zeros((2, 1, 1, 6), np.float32), np.zeros(2, np.float32)
    feeds["position_ids"] = np.zeros((2, 1), np.int64)
    feeds[name] = feeds[name].astype(dtype)
    with pytest.raises(UnsupportedError, match=r"GroupQueryAttention.*only"):
        grainline.load(built(case, feeds).SerializeToString())


@pytest.mark.parametrize("name", ["query", "past_key", "past_value", "cos", "sin", "bias"])
def test_operands_of_another_rank_are_errors(name: str) -> None:
    case = Case(2, 1, 16, 1, (6, 4), 5, is_rotary=True)
    feeds = feeds_of(np.random.default_rng(14), case)
    feeds["bias"] = np.zeros((2, 1, 1, 6), np.float32)
    feeds[name] = feeds[name][..., np.newaxis]
    with pytest.raises(ModelError, match="only"):
        grainline.load(built(case, feeds).SerializeToString())


def test_what_is_not_carried_is_named() -> None:
    rng = np.random.default_rng(12)
    case = Case(2, 1, 16, 1, (6, 4), 5)
    feeds = feeds_of(rng, case)
    with pytest.raises(UnsupportedError, match=r"GroupQueryAttention.*quantised cache.*only"):
        grainline.load(built(case, feeds, k_quant_type="PER_TENSOR").SerializeToString())
    with pytest.raises(ModelError, match="only"):
        grainline.load(built(replace(case, heads=3, groups=2), feeds).SerializeToString())
