"""Damage done on purpose: every kind is caught and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.verify.bundles import bypass, edit_manifest, edit_rank, made_by, make_bundle, node, store, stored, weights
from tpcompile.errors import NumbersDiffer, Refused
from tpcompile.verify.command import VerifyReport, verify_bundle

DEGREES = [(2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (4, [0, 0, 1, 1]), (4, [0, 1, 0, 1])]


@pytest.mark.parametrize(("tp", "parts"), DEGREES)
def test_a_good_bundle_passes_all_checks(tmp_path: Path, tp: int, parts: list[int]) -> None:
    report = verify_bundle(make_bundle(tmp_path, tp, parts))
    assert [str(fault) for fault in report.faults] == []
    assert [warning for check in report.checks for warning in check.warnings] == []
    assert [check.saw for check in report.checks][2] == "23 of 23 operations followed"
    assert [trial.name for trial in report.trials] == ["sample", "batch 1", "sequence 1", "other lengths"]
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
