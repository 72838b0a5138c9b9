"""Attention and its company from com.microsoft, and the standard one, against another engine; nothing is left to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grainline
from grainline.base.errors import FeedError, GrainlineError, UnsupportedError
from grainline.importer.model import import_model
from tests.fixtures.models import single
from tests.fixtures.peer import agrees_with_peer, peer_results

RNG = np.random.default_rng(11)
B, S, T, N, H = 2, 5, 7, 2, 4
D = N * H


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def flags(*shape: int) -> np.ndarray:
    """0 or 1, and at least one 1 in every row"""
    found = RNG.integers(0, 2, shape).astype(np.int32)
    found[..., 0] = 1
    return found


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def check(
    op: str, operands: dict[str, np.ndarray | None], outputs: int = 1, domain: str = "com.microsoft", **attributes: Any
) -> None:
    """`operands` in order, None where absent; what begins with w_ is a weight. Shapes are as given, then symbolic."""
    order = [name if array is not None else "" for name, array in operands.items()]
    given = {name: array for name, array in operands.items() if array is not None}
    weights = {name: array for name, array in given.items() if name.startswith("w_")}
    feeds = {name: array for name, array in given.items() if name not in weights}
    opset = 23 if domain == "" else 17
    model = single(
        op,
        feeds,
        weights=weights,
        order=order,
        outputs=outputs,
        opset=opset,
        symbolic=False,
        domain=domain,
        **attributes,
    )
    if domain == "":
        model.ir_version = 10
    assert not [node.attributes["reason"] for node in import_model(model).nodes if node.op == "host"]
    agrees_with_peer(model, feeds)


MASKS = {
    "none": None,
    "flags of keys": flags(B, S),
    "flags of queries": flags(B, S, S),
    "lengths": i32(3, 5),
    "ends and starts": i32(4, 5, 1, 0),
}


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_fused_attention(mask: str, is_causal: int) -> None:
    operands = {"x": f32(B, S, D), "w_w": f32(D, 3 * D), "w_b": f32(3 * D), "mask": MASKS[mask]}
    check("Attention", operands, num_heads=N, unidirectional=is_causal)


def test_fused_attention_with_sizes_scale_and_bias() -> None:
    operands = {"x": f32(B, S, 6), "w_w": f32(6, 2 * D + 6), "w_b": f32(2 * D + 6), "m": None, "p": None}
    sizes = [D, D, 6]
    check("Attention", operands, num_heads=N, qkv_hidden_sizes=sizes, scale=0.3)
    for batch, heads in ((B, N), (1, N), (1, 1)):
        check("Attention", operands | {"bias": f32(batch, heads, S, S)}, num_heads=N, qkv_hidden_sizes=sizes)


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("mask", [None, flags(B, T + S)])
def test_fused_attention_goes_on_from_the_past(mask: np.ndarray | None, is_causal: int) -> None:
    operands = {"x": f32(B, S, D), "w_w": f32(D, 3 * D), "w_b": f32(3 * D), "m": mask, "past": f32(2, B, N, T, H)}
    check("Attention", operands, outputs=2, num_heads=N, unidirectional=is_causal)


@pytest.mark.parametrize("mask", [None, flags(B, T), flags(B, S, T), i32(3, 7)])
def test_multi_head_attention(mask: np.ndarray | None) -> None:
    for bias in (None, f32(3 * D)):
        operands = {"q": f32(B, S, D), "k": f32(B, T, D), "v": f32(B, T, D), "w_b": bias, "mask": mask}
        check("MultiHeadAttention", operands, num_heads=N)


def test_multi_head_attention_of_packed_and_split_operands() -> None:
    """The peer implements the last form alone, so all are held against that."""
    q, k, v = f32(B, S, D), f32(B, S, D), f32(B, S, D)
    heads = [x.reshape(B, S, N, H) for x in (q, k, v)]
    forms = [
        {"q": np.stack(heads, axis=3)},
        {"q": q, "k": np.stack(heads[1:], axis=3)},
        {"q": q, "k": heads[1].transpose(0, 2, 1, 3), "v": heads[2].transpose(0, 2, 1, 3)},
        {"q": q, "k": k, "v": v},
    ]
    models = [single("MultiHeadAttention", form, domain="com.microsoft", num_heads=N, symbolic=False) for form in forms]
    (right,) = peer_results(models[-1].SerializeToString(), forms[-1])
    for model, form in zip(models, forms, strict=True):
        (found,) = grainline.load(model.SerializeToString()).run(form)
        np.testing.assert_allclose(found, right, 1e-4, 1e-5)


@pytest.mark.parametrize("is_causal", [0, 1])
def test_multi_head_attention_goes_on_from_the_past(is_causal: int) -> None:
    new = {"q": f32(B, S, D), "k": f32(B, S, D), "v": f32(B, S, D), "w_b": f32(3 * D), "m": None}
    past = {"bias": f32(1, N, S, T + S), "past_k": f32(B, N, T, H), "past_v": f32(B, N, T, H)}
    check("MultiHeadAttention", new | past, outputs=3, num_heads=N, unidirectional=is_causal)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    tables = {"w_cos": f32(16, H // 2), "w_sin": f32(16, H // 2)}
    for positions in (np.array([3]), RNG.integers(0, 16, (B, S))):
        check("RotaryEmbedding", {"x": f32(B, S, D), "at": positions} | tables, interleaved=interleaved)
        check("RotaryEmbedding", {"x": f32(B, N, S, H), "at": positions} | tables, interleaved=interleaved)
    partial = {"x": f32(B, S, N * 6), "at": np.array([3])} | tables
    check("RotaryEmbedding", partial, num_heads=N, rotary_embedding_dim=4, interleaved=interleaved)


@pytest.mark.parametrize("has_segments", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("has_positions", [False, True])
def test_embed_layer_normalization(has_segments: bool, has_mask: bool, has_positions: bool) -> None:
    ids = RNG.integers(0, 9, (B, S)).astype(np.int32)
    operands = {
        "ids": ids, "seg": flags(B, S) if has_segments else None, "w_words": f32(9, D), "w_at": f32(S + 3, D),
        "w_seg": f32(2, D) if has_segments else None, "w_gamma": f32(D), "w_beta": f32(D),
        "mask": flags(B, S) if has_mask else None, "pos": ids[:, ::-1] % S if has_positions else None,
    }  # fmt: skip
    check("EmbedLayerNormalization", operands, outputs=3, epsilon=1e-5)


@pytest.mark.parametrize("sides", ["", "transA", "transB", "transA transB", "transBatchA", "transBatchB transA"])
def test_fused_matmul(sides: str) -> None:
    attributes = dict.fromkeys(sides.split(), 1)
    shapes = {"A": [3, 2, 4, 5], "B": [3, 2, 5, 6]}
    for name, shape in shapes.items():
        if f"trans{name}" in attributes:
            shape[-2:] = reversed(shape[-2:])
        if f"transBatch{name}" in attributes:
            shape[:-1] = [shape[-2], *shape[:-2]]
    feeds = {name: f32(*shape) for name, shape in shapes.items()}
    check("FusedMatMul", feeds, alpha=0.25, **attributes)
    on_host = single("FusedMatMul", feeds, domain="com.microsoft", alpha=0.25, **attributes)
    assert "host FusedMatMul" in grainline.load(on_host.SerializeToString()).explain(), "extents of any name may be 1"
    agrees_with_peer(on_host, feeds)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid"])
def test_fused_gemm(activation: str) -> None:
    numbers = {"LeakyRelu": {"activation_alpha": 0.3}, "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4}}
    operands = {"a": f32(3, 4), "w_b": f32(5, 4), "w_c": f32(5)}
    check("FusedGemm", operands, transB=1, alpha=0.5, activation=activation, **numbers.get(activation, {}))


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_standard_attention(groups: int, is_causal: int) -> None:
    q, k, v = f32(B, S, 4 * H), f32(B, T, groups * H), f32(B, T, groups * 3)
    heads = {"q_num_heads": 4, "kv_num_heads": groups, "is_causal": is_causal}
    check("Attention", {"q": q, "k": k, "v": v}, domain="", **heads)
    check("Attention", {"q": q, "k": k, "v": v, "m": flags(S, T) > 0}, domain="", scale=0.2, **heads)
    split = {"q": f32(B, 4, S, H), "k": f32(B, groups, T, H), "v": f32(B, groups, T, H), "m": f32(B, 1, S, T)}
    check("Attention", split, domain="", is_causal=is_causal)
    past = {"pk": f32(B, groups, 3, H), "pv": f32(B, groups, 3, H)}
    check("Attention", split | {"m": f32(S, T + 3)} | past, outputs=3, domain="")


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    mask = np.ones((S, T), bool)
    mask[2] = False
    feeds = {"q": f32(B, 1, S, H), "k": f32(B, 1, T, H), "v": f32(B, 1, T, H), "m": mask}
    for form in ({}, {"is_causal": 1}):
        built = single("Attention", feeds, opset=23, symbolic=False, **form)
        built.ir_version = 10
        (found,) = grainline.load(built.SerializeToString()).run(feeds)
        assert not found[:, :, 2].any() and np.isfinite(found).all() and found[:, :, 3].all()


def test_lengths_stay_symbolic() -> None:
    """One compiled attention serves every batch and length, and one kernel holds it."""
    weights = {"w": f32(D, 3 * D), "b": f32(3 * D)}
    model = single(
        "Attention",
        {"x": f32(B, S, D), "mask": flags(B, S)},
        weights=weights,
        order=["x", "w", "b", "mask"],
        num_heads=N,
        domain="com.microsoft",
    )
    for value, names in zip(model.graph.input, (("batch", "length", D), ("batch", "length")), strict=True):
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if isinstance(name, str):
                dim.dim_param = name
            else:
                dim.dim_value = name
    loaded = grainline.load(model.SerializeToString())
    chains = [line for line in loaded.explain().splitlines() if "<-" in line and line.count(" matmul") == 3]
    assert len(chains) == 1, "both products and the softmax between them are one kernel"
    for batch, length in ((1, 1), (3, 8), (2, 65)):
        agrees_with_peer(model, {"x": f32(batch, length, D), "mask": flags(batch, length)})


@pytest.mark.parametrize("past", [None, 3])
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (1, 4), (1, 1)])
def test_causal_queries_and_keys_of_other_numbers(lengths: tuple[int, int], past: int | None) -> None:
    queries, keys = lengths
    operands = {"q": f32(B, queries, D), "k": f32(B, keys, D), "v": f32(B, keys, D), "b": None, "m": None, "e": None}
    if past is not None:
        operands |= {"past_k": f32(B, N, past, H), "past_v": f32(B, N, past, H)}
    check("MultiHeadAttention", operands, outputs=1 if past is None else 3, num_heads=N, unidirectional=1)


@pytest.mark.parametrize("seed", range(4))
def test_what_two_masks_hide_counts_once(seed: int) -> None:
    """All keys of a query may be hidden, by the lowest number: then they weigh the same."""
    flags = np.random.default_rng(seed).integers(0, 2, (B, S, S)).astype(np.int32)
    operands = {"x": f32(B, S, D), "w_w": f32(D, 3 * D), "w_b": None, "mask": flags}
    for fill in (-1.0, -1e9, float(np.finfo(np.float32).min)):
        check("Attention", operands, num_heads=N, unidirectional=1, mask_filter_value=fill)


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("shape", [(S, T), (N, S, T), (B, 1, S, T), (B, N, S, T)])
def test_a_query_from_which_a_standard_mask_hides_everything_gives_zeros(
    shape: tuple[int, ...], is_causal: int
) -> None:
    shown = RNG.random(shape) < 0.3
    shown[..., 1, :] = False
    given = {"q": f32(B, S, D), "k": f32(B, T, D), "v": f32(B, T, D)}
    forms = {"domain": "", "q_num_heads": N, "kv_num_heads": N, "is_causal": is_causal}
    check("Attention", given | {"m": shown}, **forms)
    check("Attention", given | {"m": np.where(shown, 0, -np.inf).astype(np.float32)}, **forms)


def symbolic(op: str, feeds: dict[str, np.ndarray], dims: dict[str, tuple[Any, ...]], **attributes: Any) -> Any:
    """One node of com.microsoft whose inputs are declared with these dimensions; operands in the order of `dims`."""
    order = [name if name in feeds else "" for name in dims]
    model = single(op, feeds, order=order, domain="com.microsoft", symbolic=False, **attributes)
    for value in model.graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, dims[value.name], strict=True):
            if isinstance(extent, str):
                dim.Clear()
                dim.dim_param = extent
    return model


def test_what_must_be_equal_may_have_names_of_its_own() -> None:
    """Exporters name the extents of each input by itself, also the sum of past and present."""
    past = {"past_k": f32(B, N, T, H), "past_v": f32(B, N, T, H)}
    feeds = {"q": f32(B, S, D), "k": f32(B, S, D), "v": f32(B, S, D), "m": flags(B, T + S), "e": f32(B, N, S, T + S)}
    dims = {
        "q": ("b0", "s0", D), "k": ("b1", "s1", D), "v": ("b2", "s2", D), "bias": (), "m": ("b3", "total"),
        "e": ("b4", N, "s3", "total3"), "past_k": ("b5", N, "p0", H), "past_v": ("b6", N, "p1", H),
    }  # fmt: skip
    model = symbolic("MultiHeadAttention", feeds | past, dims, num_heads=N, outputs=3)
    agrees_with_peer(model, feeds | past)
    feeds = {"x": f32(B, S, D), "w": f32(D, 3 * D), "b": f32(3 * D), "m": flags(B, T + S), "past": f32(2, B, N, T, H)}
    dims = {
        "x": ("b0", "s", D), "w": (D, 3 * D), "b": ("columns",), "m": ("b1", "total"), "past": (2, "b2", N, "p", H),
    }  # fmt: skip
    model = symbolic("Attention", feeds, dims, num_heads=N, outputs=2)
    agrees_with_peer(model, feeds)
    ids = {"ids": i32(1, 2).reshape(1, 2), "seg": i32(0, 1).reshape(1, 2), "pos": i32(1, 0).reshape(1, 2)}
    tables = {"words": f32(9, D), "at": f32(3, D), "kinds": f32(2, D), "gamma": f32(D), "beta": f32(D)}
    shown = {"ids": ("b0", "s0"), "seg": ("b1", "s1")} | {name: table.shape for name, table in tables.items()}
    order = {name: shown[name] for name in ("ids", "seg", *tables)} | {"m": (), "pos": ("b2", "s2")}
    agrees_with_peer(symbolic("EmbedLayerNormalization", ids | tables, order, outputs=2), ids | tables)
    with pytest.raises(FeedError, match="mask"):
        grainline.load(model.SerializeToString()).run(feeds | {"m": flags(B, T + S - 1)})


@pytest.mark.parametrize("name", ["bias", "long bias", "matrix bias", "past alone", "batch", "width"])
def test_operands_that_do_not_fit_are_refused(name: str) -> None:
    operands = {"q": f32(B, S, D), "k": f32(B, T, D), "v": f32(B, T, D), "b": None, "m": None, "e": None}
    wrong = {
        "bias": {"b": f32(D)}, "long bias": {"b": f32(3 * D + 1)}, "matrix bias": {"b": f32(1, 3 * D)},
        "past alone": {"past_k": f32(B, N, T, H)}, "batch": {"k": f32(1, T, D), "v": f32(1, T, D)},
        "width": {"k": f32(B, T, 2 * D)},
    }[name]  # fmt: skip
    given = {key: array for key, array in (operands | wrong).items() if array is not None}
    order = [key if key in given else "" for key in operands | wrong]
    for is_symbolic in (False, True):
        model = single(
            "MultiHeadAttention", given, order=order, domain="com.microsoft", num_heads=N, symbolic=is_symbolic
        )
        with pytest.raises(GrainlineError):
            grainline.load(model.SerializeToString()).run(given)


def test_what_is_not_carried_is_named_with_its_reason() -> None:
    operands = {"q": f32(B, S, D), "k": f32(B, T, D), "v": f32(B, T, D)}
    model = single("MultiHeadAttention", operands, outputs=4, domain="com.microsoft", num_heads=N)
    with pytest.raises(UnsupportedError, match=r"com\.microsoft::MultiHeadAttention.*products.*'only'"):
        grainline.load(model.SerializeToString())
