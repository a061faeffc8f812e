"""Operators that are taken apart: the parts give the numbers of the whole, and the table in them can be cut."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.cuts import named_leaves
from tests.rules.forced import analysed, differs, force, run_ranks, run_whole
from tests.rules.sample import Sample

TABLES = "float[9, 8] words, float[7, 8] at, float[8] g, float[8] c"
EMBED = "com.microsoft.EmbedLayerNormalization"
IDS = "int32[b, s] ids"
FORMS = {
    "positions in order": (IDS, TABLES, "y, n", f"{EMBED}<epsilon = 0.01>(ids, , words, at, , g, c)"),
    "positions given": (
        f"{IDS}, int32[1, s] p", TABLES, "y, n", f"{EMBED}(ids, , words, at, , g, c, , p)",
    ),
    "segments, mask and sum": (
        f"{IDS}, int32[b, s] k, int32[b, s] m", f"{TABLES}, float[2, 8] kinds", "y, n, e",
        f"{EMBED}<mask_index_type = 1>(ids, k, words, at, kinds, g, c, m)",
    ),
}  # fmt: skip


def sample(form: str, opset: int) -> Sample:
    inputs, weights, outputs, call = FORMS[form]
    types = ", ".join(f"{'int32' if name == 'n' else 'float'}[] {name}" for name in outputs.split(", "))
    values = {"ids": (0, 9), "k": (0, 2), "m": (0, 2), "p": (0, 7)}
    text = f"({inputs}) => ({types}) <{weights}> {{ {outputs} = {call} }}"
    return Sample("com.microsoft.X", text, opset=opset, values=values)


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("form", FORMS)
def test_the_vocabulary_of_a_fused_embedding_is_cut(form: str, opset: int) -> None:
    model = sample(form, opset).model()
    feeds = sample(form, opset).feeds(model)
    work = analysed(model)
    words = named_leaves(work.analysis, work.program.nodes)["words[0]"]
    forced = force(work, 3, {words: (0,)})
    assert [kind for kind, _ in forced.collectives] == ["all_reduce"]
    assert [weight.parts[1].axes[0] for weight in forced.local.weights if weight.weight.name == "words"] == [((3, 6),)]
    want = run_whole(model, feeds)
    assert [differs(want, got) for got in run_ranks(forced.models(), feeds)] == [""] * 3


def test_the_parts_have_names_of_their_own() -> None:
    text = f"""(int32[2, 3] ids) => (float[2, 3, 8] y, float[2, 3, 8] z) <{TABLES}>
    {{ y, n = {EMBED}(ids, , words, at, , g, c) z, m = {EMBED}(ids, , words, at, , g, c) }}"""
    model = Sample("com.microsoft.X", text).model()
    names = [output.name for node in analysed(model).program.nodes for output in node.outputs if output is not None]
    assert len(names) == len(set(names))
    assert {"y", "z", "y.gather_1", "z.range_1"} <= set(names)
    feeds = {"ids": np.array([[1, 2, 8], [0, 5, 8]], np.int32)}
    want = run_whole(model, feeds)
    assert differs(want, run_ranks(force(analysed(model), 1, {}).models(), feeds)[0]) == ""


def test_the_source_stays_as_it_was() -> None:
    model = sample("positions in order", 20).model()
    before = onnx.ModelProto()
    before.CopyFrom(model)
    analysed(model)
    assert model == before
