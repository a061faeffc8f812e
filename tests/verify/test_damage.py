"""Damage done on purpose: every kind is caught and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.verify import decoders
from tests.verify.bundles import bypass, edit_manifest, edit_rank, made_by, make_bundle, node, store, stored, weights
from tpcompile.errors import NumbersDiffer, Refused
from tpcompile.verify.command import VerifyReport, verify_bundle

DEGREES = [(2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (4, [0, 0, 1, 1]), (4, [0, 1, 0, 1])]


@pytest.mark.parametrize(("tp", "parts"), DEGREES)
def test_a_good_bundle_passes_all_checks(tmp_path: Path, tp: int, parts: list[int]) -> None:
    report = verify_bundle(make_bundle(tmp_path, tp, parts))
    assert [str(fault) for fault in report.faults] == []
    assert [warning for check in report.checks for warning in check.warnings] == []
    assert [check.saw for check in report.checks][2] == "26 of 26 operations followed"
    trials = ["sample", "batch 1", "sequence 1", "other lengths", "negative ids"]
    assert [trial.name for trial in report.trials] == trials
    assert max(trial.worst[1] for trial in report.trials) < 1e-6
    report.raise_if_bad()


Change = Callable[[onnx.ModelProto], None]


def swap_slices(model: onnx.ModelProto) -> None:
    """Rank 0 gets the second half of the hidden columns, rank 1 the first (see `other` in the table below)."""
    store(model, "up", weights()["up"][:, 4:])


def swap_slices_other(model: onnx.ModelProto) -> None:
    store(model, "up", weights()["up"][:, :4])


def bias_on_every_rank(model: onnx.ModelProto) -> None:
    store(model, "down_bias", weights()["down_bias"])


def bias_on_no_rank(model: onnx.ModelProto) -> None:
    store(model, "down_bias", np.zeros(6, np.float32))


def forget_reduce(model: onnx.ModelProto) -> None:
    bypass(model, "down_sum")


def leave_logits_cut(model: onnx.ModelProto) -> None:
    for name in ("logits_padded", "logits_joined", "logits_valid"):
        bypass(model, name)


def unread_collective(model: onnx.ModelProto) -> None:
    made_by(model, "residual").input[1] = "down_part"


def wrong_offset(model: onnx.ModelProto) -> None:
    store(model, "offset", stored(model, "offset") + 1)


def mask_too_wide(model: onnx.ModelProto) -> None:
    store(model, "count", stored(model, "count") + 1)


def mask_too_narrow(model: onnx.ModelProto) -> None:
    store(model, "count", stored(model, "count") - 1)


def no_mask(model: onnx.ModelProto) -> None:
    made_by(model, "embedded").input[0] = "looked_up"
    model.graph.node.remove(made_by(model, "embedded_part"))


def stale_value_info(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("up_out", 1, ["batch", "seq", 8]))


def stale_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 5


def reorder(model: onnx.ModelProto) -> None:
    """The second reduce before the first (its input does not need it here, so the file stays sorted)."""
    first, second = made_by(model, "embedded"), made_by(model, "down_sum")
    first.output[0], second.output[0] = second.output[0], first.output[0]


def reduce_by_max(model: onnx.ModelProto) -> None:
    for attribute in made_by(model, "down_sum").attribute:
        if attribute.name == "reduce_op":
            attribute.s = b"max"


def drop_scale(model: onnx.ModelProto) -> None:
    bypass(model, "scaled")


def relu_too_late(model: onnx.ModelProto) -> None:
    """A nonlinear function between the partial product and its reduce."""
    made_by(model, "down_sum").input[0] = "late"
    at = [n.output[0] for n in model.graph.node].index("down_sum")
    model.graph.node.insert(at, node("Tanh", "down_part", "late"))


def reduce_twice(model: onnx.ModelProto) -> None:
    """The whole residual is summed over ranks."""
    again = onnx.NodeProto()
    again.CopyFrom(made_by(model, "embedded"))
    again.input[0], again.output[0], again.name = "residual", "residual_again", "reduce_again"
    made_by(model, "scaled").input[0] = "residual_again"
    model.graph.node.insert([n.output[0] for n in model.graph.node].index("scaled"), again)


def wrong_row(model: onnx.ModelProto) -> None:
    table = stored(model, "table").copy()
    table[1, 2] = np.nextafter(table[1, 2], 9)
    store(model, "table", table)


def lost_tensor(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "up_bias")
    tensor.name = "renamed"
    made_by(model, "up_sum").input[1] = "renamed"


EVERY, LAST = "every rank", "the last rank"
DAMAGES: list[tuple[Change, str, str, str]] = [
    (
        bias_on_every_rank,
        EVERY,
        "TP525",
        "Add down_part_node: adds 'down_bias', which every rank holds, to partial 'down_out'",
    ),
    (bias_on_no_rank, EVERY, "TP511", "down_bias: has an element that no rank holds: index [0] of shape [6]"),
    (
        forget_reduce,
        EVERY,
        "TP525",
        "Add residual_node: adds 'embedded', which every rank holds, to partial 'down_part'",
    ),
    (
        forget_reduce,
        LAST,
        "TP522",
        "its collective 1 is all_gather to 'logits_joined', that of rank 0 is all_reduce to 'down_sum'",
    ),
    (leave_logits_cut, EVERY, "TP529", "output logits: is axis 2: 10 cut 0-4|5-9, by bundle.json it is"),
    (unread_collective, EVERY, "TP527", "the result 'down_sum' of all_reduce is read by nobody"),
    (wrong_offset, LAST, "TP528", "rank 1 gives row 5 of the table where row 6 is asked"),
    (mask_too_wide, EVERY, "TP530", "rank 0: its graph does not run: [ONNXRuntimeError]"),
    (mask_too_narrow, EVERY, "TP528", "0 parts of the table answer for row"),
    (no_mask, EVERY, "TP528", "sums 'looked_up', a lookup in a cut table whose foreign rows are not zeroed"),
    (stale_value_info, LAST, "TP520", "rank 1: strict shape inference fails"),
    (
        stale_output,
        LAST,
        "TP521",
        "rank 1: logits: is declared as ['batch', 'seq', 5], by source and placement it is ['batch', 'seq', 10]",
    ),
    (
        reorder,
        LAST,
        "TP522",
        "its collective 0 is all_reduce to 'down_sum', that of rank 0 is all_reduce to 'embedded'",
    ),
    (reduce_by_max, EVERY, "TP523", "reduces 'down_part' by max, which is partial (sum)"),
    (reduce_by_max, LAST, "TP522", "its collective 1 is all_reduce to 'down_sum', that of rank 0"),
    (drop_scale, EVERY, "TP532", "first value that departs from the source: logits (made by MatMul logits_node)"),
    (relu_too_late, EVERY, "TP524", "Tanh late_node: reads 'down_part', which is partial (sum)"),
    (reduce_twice, EVERY, "TP523", "reduces 'residual', which is whole and no partial value"),
    (
        wrong_row,
        LAST,
        "TP510",
        "table on rank 1: holds at index 1 of axis 0 what the source holds at no index of that axis",
    ),
    (lost_tensor, LAST, "TP512", "up_bias: is stored by ranks [0] only"),
]


def codes(report: VerifyReport) -> list[str]:
    return [fault.code for fault in report.faults]


def said(report: VerifyReport, code: str, text: str) -> bool:
    return any(fault.code == code and text in str(fault) for fault in report.faults)


@pytest.mark.parametrize(
    ("change", "where", "code", "text"), DAMAGES, ids=[f"{c.__name__} {w}" for c, w, _, _ in DAMAGES]
)
def test_damage_is_caught_and_named(tmp_path: Path, change: Change, where: str, code: str, text: str) -> None:
    bundle = make_bundle(tmp_path, 2)
    for rank in (0, 1) if where == EVERY else (1,):
        edit_rank(bundle, rank, change)
    report = verify_bundle(bundle)
    assert said(report, code, text), "\n".join(map(str, report.faults))
    with pytest.raises(NumbersDiffer):
        report.raise_if_bad()


def test_swapped_slices(tmp_path: Path) -> None:
    """Each rank holds a true slice, so the weights tile; but the biases beside them belong to the other columns."""
    bundle = make_bundle(tmp_path, 2)
    edit_rank(bundle, 0, swap_slices)
    edit_rank(bundle, 1, swap_slices_other)
    report = verify_bundle(bundle)
    assert not report.checks[0].faults
    assert said(
        report, "TP526", "Add up_sum_node: axis -1 of its inputs do not lie alike: 8 cut 4-7|0-3 and 8 cut 0-3|4-7"
    )
    assert said(
        report,
        "TP532",
        "up_out (sample): is the first value that departs from the source: up_out (made by MatMul up_out_node)",
    )


def test_padding_that_stays_in(tmp_path: Path) -> None:
    """Of 4 ranks two pad their logits before the gather; the selection after it takes one of the padded rows."""
    bundle = make_bundle(tmp_path, 4)

    def change(model: onnx.ModelProto) -> None:
        valid = stored(model, "valid").copy()
        valid[-1] += 1
        store(model, "valid", valid)

    for rank in range(4):
        edit_rank(bundle, rank, change)
    report = verify_bundle(bundle)
    assert said(report, "TP529", "output logits: is axis 2: ") and "TP531" in codes(report)


def test_a_part_that_two_ranks_hold(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    edit_rank(bundle, 1, swap_slices_other)
    report = verify_bundle(bundle)
    assert said(report, "TP511", "up: has an element that no rank holds: index [0, 4] of shape [6, 8]")


@pytest.mark.parametrize("everywhere", [True, False])
def test_wrong_groups(tmp_path: Path, everywhere: bool) -> None:
    """Ranks 0 and 1 hold the same half of the hidden axis: a sum over them counts it twice."""
    bundle = make_bundle(tmp_path, 4, [0, 0, 1, 1])

    def regroup(group: list[int]) -> Change:
        def change(model: onnx.ModelProto) -> None:
            for attribute in made_by(model, "down_sum").attribute:
                if attribute.name == "groups":
                    attribute.ints[:] = group

        return change

    groups = [[0, 1], [0, 1], [2, 3], [2, 3]] if everywhere else [[0, 2], [1, 2]]
    for rank, group in enumerate(groups):
        edit_rank(bundle, rank, regroup(group))
    report = verify_bundle(bundle)
    assert "TP522" in codes(report)  # bundle.json lists other groups; or the ranks disagree
    if everywhere:
        text = "sums 'down_part' in group [0, 1] of rank 0, whose ranks add terms [0, 0] of [0, 1]: each must be"
        assert said(report, "TP523", text)
        assert "TP531" in codes(report)
    else:
        assert said(
            report, "TP522", "rank 1: reduce_1: its group is [1, 2], the ranks have [[0, 2], [1, 2], [0, 2], [1, 3]]"
        )


def test_an_output_left_partial(tmp_path: Path) -> None:
    """The output is the sum before its reduce."""
    bundle = make_bundle(tmp_path, 2)

    def change(model: onnx.ModelProto) -> None:
        made_by(model, "logits").output[0] = "dead"
        model.graph.node.append(node("Pad", "down_part wider", "logits"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 4]), "wider"))

    for rank in range(2):
        edit_rank(bundle, rank, change)
    report = verify_bundle(bundle)
    assert said(report, "TP524", "output logits: is partial (sum): a collective is missing")
    assert said(
        report, "TP531", "output logits (sample): is whole by bundle.json, but rank 1 has another value than rank 0"
    )


def test_wrong_ranges_in_the_manifest(tmp_path: Path) -> None:
    """bundle.json says the logits are cut; they are whole."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["outputs"]["logits"]["placement"] = {"kind": "shard", "axis": 2, "ranges": [[[0, 5]], [[5, 10]]]}

    bundle = make_bundle(tmp_path, 2)
    edit_manifest(bundle, change)
    report = verify_bundle(bundle)
    assert said(
        report,
        "TP521",
        "rank 0: logits: is declared as ['batch', 'seq', 10], by source and placement it is ['batch', 'seq', 5]",
    )
    assert said(report, "TP531", "has shape [2, 6, 10] on rank 0, its ranges on axis 2 name 5 indices")


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    path = bundle / "rank1.bin"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Refused, match="TP456"):
        verify_bundle(bundle)


def test_weights_truncated_together_with_the_manifest(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    path = bundle / "rank1.bin"
    path.write_bytes(path.read_bytes()[:-4])

    def change(manifest: dict[str, Any]) -> None:
        manifest["ranks"][1]["data"][0]["bytes"] -= 4

    edit_manifest(bundle, change)
    report = verify_bundle(bundle)
    assert "TP513" in codes(report) and "TP530" in codes(report)


def test_a_changed_rank_file_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    path = bundle / "model_tp2_rank1.onnx"
    path.write_bytes(path.read_bytes().replace(b"up_out", b"up_xxx"))
    with pytest.raises(Refused) as error:
        verify_bundle(bundle)
    assert str(error.value) == (
        "TP501 model_tp2_rank1.onnx: is not the file that bundle.json describes: its sha256 differs. "
        "Compile the model again, or copy the bundle again from where it was made"
    )


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled decoder on two ranks, sound."""
    return decoders.compiled(tmp_path_factory.mktemp("decoder"))


def weight(name: str) -> decoders.Array:
    return decoders.weights()[name]


def moved_slice(model: onnx.ModelProto) -> None:
    """Columns 25 … 48 without the last, and one that is rank 0's."""
    store(model, "up", weight("up")[:, 23:47])


def other_rows(rank: int) -> Change:
    return lambda model: store(model, "o", weight("o")[:32] if rank else weight("o")[32:])


def transposed_square(model: onnx.ModelProto) -> None:
    store(model, "up", stored(model, "up").T)


def whole_on_one_rank(model: onnx.ModelProto) -> None:
    store(model, "up", weight("up"))


def mixed_q_k_v(rank: int) -> Change:
    """Half of the columns of q | k | v, not half of each: q0 q1 … of one rank would be q, k and v of another."""

    def change(model: onnx.ModelProto) -> None:
        for name in ("qkv", "qkv_bias"):
            store(model, name, np.split(weight(name), 2, axis=-1)[rank])

    return change


def by_rank_q_k_v(rank: int) -> Change:
    """The gather order of segments turned: k, v, q where Split takes q, k, v."""

    def change(model: onnx.ModelProto) -> None:
        for name in ("qkv", "qkv_bias"):
            q, k, v = np.split(stored(model, name), [32, 48], axis=-1)
            store(model, name, np.concatenate([k, v, q], axis=-1))

    return change


def stale_split(model: onnx.ModelProto) -> None:
    name = made_by(model, "k").input[1]
    store(model, name, np.array([64, 32, 32]))


def uneven_split(model: onnx.ModelProto) -> None:
    store(model, made_by(model, "k").input[1], np.array([16, 24, 24]))


def reshape_of_the_whole(model: onnx.ModelProto) -> None:
    """4 heads of 8 where a rank has 2 of 16: sizes fit, the norm of each head does not."""
    store(model, made_by(model, "q_heads").input[1], np.array([0, 0, 4, 8]))
    store(model, "norm_q", stored(model, "norm_q")[:8])


def whole_query_width(model: onnx.ModelProto) -> None:
    store(model, made_by(model, "q_all").input[1], np.array([0, 0, 64]))


def head_counts_of_the_whole(model: onnx.ModelProto) -> None:
    for attribute in made_by(model, "a").attribute:
        attribute.i = {"q_num_heads": 4, "kv_num_heads": 2}.get(attribute.name, attribute.i)


def two_query_heads_as_one(model: onnx.ModelProto) -> None:
    next(a for a in made_by(model, "a").attribute if a.name == "q_num_heads").i = 1


def norm_zeroed(model: onnx.ModelProto) -> None:
    store(model, "norm_2", np.zeros(24, np.float32))


def norm_of_another(model: onnx.ModelProto) -> None:
    made_by(model, "n2").input[1] = "norm_1"


def gather_for_reduce(model: onnx.ModelProto) -> None:
    set_attributes(made_by(model, "o_sum.sum"), collective_operation=b"all_gather", reduce_op=b"none")


def reduce_for_gather(model: onnx.ModelProto) -> None:
    set_attributes(made_by(model, "logits.gathered"), collective_operation=b"all_reduce", reduce_op=b"sum")


def wrong_nb_rank(model: onnx.ModelProto) -> None:
    set_attributes(made_by(model, "logits.gathered"), nb_rank=4)


def set_attributes(node: onnx.NodeProto, **values: bytes | int) -> None:
    for attribute in node.attribute:
        value = values.get(attribute.name)
        if isinstance(value, bytes):
            attribute.s = value
        elif value is not None:
            attribute.i = value


def reduced_after_the_residual(model: onnx.ModelProto) -> None:
    """The residual, which all ranks have, is summed with the partial product."""
    first, second = made_by(model, "down_out.sum"), made_by(model, "h2")
    second.input[:], second.output[0] = ["h1", "down_out"], "h2_part"
    first.input[0], first.output[0] = "h2_part", "h2"
    nodes = [node for node in model.graph.node if node.output[0] not in ("h2", "h2_part")]
    at = [node.output[0] for node in nodes].index("down_out") + 1
    ordered = [*nodes[:at], second, first, *nodes[at:]]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def parts_turned(model: onnx.ModelProto) -> None:
    """The part of rank 1 comes first."""
    order = made_by(model, "logits.ordered").input[1]
    store(model, order, np.roll(stored(model, order), 251))


def one_row_less_held(model: onnx.ModelProto) -> None:
    store(model, "h.held", stored(model, "h.held") - 1)


def negative_ids_not_wrapped(model: onnx.ModelProto) -> None:
    store(model, "h.rows", stored(model, "h.rows") + 1)


def cache_of_values_in_keys(model: onnx.ModelProto) -> None:
    node = made_by(model, "a")
    node.input[4], node.input[5] = node.input[5], node.input[4]


def both(change: Change) -> dict[int, Change]:
    """The same on both ranks."""
    return {0: change, 1: change}


DECODER_DAMAGES: list[tuple[str, dict[int, Change], str, str]] = [
    (
        "a slice shifted by one",
        {1: moved_slice},
        "TP511",
        "up: has an element that no rank holds: index [0, 47] of shape [24, 48]",
    ),
    (
        "slices of two ranks swapped",
        {0: other_rows(0), 1: other_rows(1)},
        "TP526",
        "MatMul o_out_node: the contracted axes do not lie alike: 64 cut 0-31|32-63 and 64 cut 32-63|0-31",
    ),
    (
        "a square part transposed",
        {1: transposed_square},
        "TP510",
        "up on rank 1: holds at index 0 of axis 1 what the source holds at no index of that axis",
    ),
    (
        "whole on one rank, a part on the other",
        {1: whole_on_one_rank},
        "TP520",
        "rank 1: strict shape inference fails: [ShapeInferenceError] Inference error(s): "
        "(op_type:MatMul, node name: down_out_node)",
    ),
    (
        "q | k | v in halves",
        {0: mixed_q_k_v(0), 1: mixed_q_k_v(1)},
        "TP526",
        "Split q k v_node: takes 0-31 and 64-95 of 128 cut 0-63|64-127 for one part, which is no run of it",
    ),
    (
        "k, v, q for q, k, v",
        {0: by_rank_q_k_v(0), 1: by_rank_q_k_v(1)},
        "TP526",
        "Split q k v_node: takes 0-15 and 32-47 of 128 cut 64-79,96-111,0-31|80-95,112-127,32-63 for one part",
    ),
    (
        "Split sizes of the whole",
        both(stale_split),
        "TP520",
        "(op_type:Split, node name: q k v_node): [ShapeInferenceError] Mismatch between the sum of 'split' (128)",
    ),
    (
        "Split sizes of others",
        both(uneven_split),
        "TP530",
        "while running Reshape node. Name:'q_heads_node'",
    ),
    (
        "a Reshape to other heads",
        {0: reshape_of_the_whole, 1: reshape_of_the_whole},
        "TP532",
        "q_heads (given): is the first value that departs from the source: q_heads (made by Reshape q_heads_node)",
    ),
    (
        "a Reshape of the whole",
        both(whole_query_width),
        "TP530",
        "while running Reshape node. Name:'q_all_node'",
    ),
    (
        "head counts of the whole",
        both(head_counts_of_the_whole),
        "TP530",
        "while running Attention node. Name:'attention'",
    ),
    (
        "two heads as one",
        both(two_query_heads_as_one),
        "TP520",
        "node name: o_out_node",
    ),
    (
        "a norm zeroed",
        {0: norm_zeroed, 1: norm_zeroed},
        "TP511",
        "norm_2: has an element that no rank holds: index [0] of shape [24]",
    ),
    (
        "another norm's scale",
        {0: norm_of_another, 1: norm_of_another},
        "TP532",
        "n2 (given): is the first value that departs from the source: n2 (made by RMSNormalization n2_node)",
    ),
    (
        "a gather for a reduce",
        {0: gather_for_reduce, 1: gather_for_reduce},
        "TP522",
        "bundle.json: lists collective 1 as all_reduce, the rank files have all_gather to 'o_sum.sum'",
    ),
    (
        "a reduce for a gather",
        {0: reduce_for_gather, 1: reduce_for_gather},
        "TP522",
        "bundle.json: lists collective 3 as all_gather, the rank files have all_reduce to 'logits.gathered'",
    ),
    (
        "nb_rank of a larger group",
        {0: wrong_nb_rank, 1: wrong_nb_rank},
        "TP522",
        "rank 0: logits.gathered: nb_rank is 4 for group [0, 1]",
    ),
    (
        "a residual counted twice",
        {0: reduced_after_the_residual, 1: reduced_after_the_residual},
        "TP525",
        "Add h2_node: adds 'h1', which every rank holds, to partial 'down_out'",
    ),
    (
        "gathered parts in another order",
        {0: parts_turned, 1: parts_turned},
        "TP529",
        "output logits: is axis 2: 503 cut",
    ),
    (
        "one row less in a mask",
        {0: one_row_less_held},
        "TP528",
        "0 parts of the table answer for row 251 asked at [0, 1], it must be one",
    ),
    (
        "ids wrapped by another size",
        {0: negative_ids_not_wrapped, 1: negative_ids_not_wrapped},
        "TP532",
        "h (negative ids): is the first value that departs from the source: h (made by Gather h_node)",
    ),
    (
        "caches exchanged",
        {0: cache_of_values_in_keys, 1: cache_of_values_in_keys},
        "TP532",
        "a (given): is the first value that departs from the source: a (made by Attention attention)",
    ),
]


@pytest.mark.parametrize(
    ("changes", "code", "text"), [d[1:] for d in DECODER_DAMAGES], ids=[d[0] for d in DECODER_DAMAGES]
)
def test_damage_to_a_decoder(decoder: Path, tmp_path: Path, changes: dict[int, Change], code: str, text: str) -> None:
    bundle = decoders.copied(decoder, tmp_path)
    for rank, change in changes.items():
        edit_rank(bundle, rank, change)
    report = verify_bundle(bundle, inputs=None if "negative" in text else decoders.inputs())
    assert said(report, code, text), "\n".join(map(str, report.faults))


def test_a_sound_decoder(decoder: Path) -> None:
    report = verify_bundle(decoder, inputs=decoders.inputs())
    assert report.ok and report.checks[2].warnings == []


def model_names(content: dict[str, Any]) -> None:
    """Rank 0 runs the model of rank 1 and the reverse; each with the other's weights."""
    first, second = content["ranks"]
    for key in ("model", "model_sha256", "data"):
        first[key], second[key] = second[key], first[key]


def renamed_input(content: dict[str, Any]) -> None:
    content["inputs"] = {"tokens" if n == "ids" else n: entry for n, entry in content["inputs"].items()}
    content["roles"]["tokens"] = "tokens"


def heads_exchanged(content: dict[str, Any]) -> None:
    for side, names in (("inputs", ("past_k", "past_v")), ("outputs", ("present_k", "present_v"))):
        for name in names:
            content[side][name]["placement"]["ranges"] = [[[1, 2]], [[0, 1]]]


def a_head_twice(content: dict[str, Any]) -> None:
    for side, name in (("inputs", "past_k"), ("outputs", "present_k")):
        content[side][name]["placement"]["ranges"] = [[[0, 2]], [[1, 2]]]


MANIFEST_DAMAGES: list[tuple[Callable[[dict[str, Any]], None], str, str]] = [
    (model_names, "TP529", "output present_k: is axis 1: 2 cut 1|0, by bundle.json it is axis 1: 2 cut 0|1"),
    (renamed_input, "TP521", "bundle.json: has inputs ['tokens', 'past_k', 'past_v'], the source has ['ids', "),
    (
        heads_exchanged,
        "TP526",
        "Attention attention: the heads of the cache and of new keys do not lie alike: 2 cut 0|1 and",
    ),
    (
        a_head_twice,
        "TP521",
        "past_k: is declared as ['batch', 1, 'past', 16], by source and placement it is ['batch', 2, ",
    ),
]


@pytest.mark.parametrize(("change", "code", "text"), MANIFEST_DAMAGES, ids=[d[0].__name__ for d in MANIFEST_DAMAGES])
def test_damage_to_the_manifest(
    decoder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], code: str, text: str
) -> None:
    bundle = decoders.copied(decoder, tmp_path)
    edit_manifest(bundle, change)
    report = verify_bundle(bundle, inputs=decoders.inputs())
    assert said(report, code, text), "\n".join(map(str, report.faults))


def a_head_lacks(content: dict[str, Any]) -> None:
    for side, name in (("inputs", "past_k"), ("outputs", "present_k")):
        content[side][name]["placement"]["ranges"] = [[[0, 1]], [[0, 1]]]
        content[side][name]["placement"]["ranges"][1] = [[2, 3]]


def two_ends(content: dict[str, Any]) -> None:
    content["outputs"]["present_v"]["placement"]["ranges"] = [[[1, 2]], [[0, 1]]]


def state_of_nothing(content: dict[str, Any]) -> None:
    content["state"][0]["output"] = "presents"


def role_of_nothing(content: dict[str, Any]) -> None:
    content["roles"]["logits"] = "scores"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (a_head_lacks, "the ranges of past_k do not cover its axis 1; the ranges of present_k do not cover its axis 1"),
        (two_ends, "state past_v -> present_v is cut differently at its two ends"),
        (state_of_nothing, "state past_k -> presents names no input and output of the model"),
        (role_of_nothing, "role logits names scores, which is no input or output"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_manifest_that_contradicts_itself(
    decoder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], text: str
) -> None:
    bundle = decoders.copied(decoder, tmp_path)
    edit_manifest(bundle, change)
    with pytest.raises(Refused) as error:
        verify_bundle(bundle)
    where = bundle / "bundle.json"
    assert str(error.value) == f"TP457 {where}: {text}. Compile the model again"


def test_one_flipped_bit(decoder: Path, tmp_path: Path) -> None:
    """In the middle of a file of weights: its size and the model that reads it stay as they are."""
    bundle = decoders.copied(decoder, tmp_path)
    path = bundle / "rank1.bin"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    report = verify_bundle(bundle, inputs=decoders.inputs())
    assert said(report, "TP510", "table on rank 1: differs from the source first at index [52, 2]"), report.faults
