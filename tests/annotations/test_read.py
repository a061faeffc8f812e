"""A model's own annotations decide its plan: those of a plan give that plan again; what cannot be followed is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import LIMIT, TWO_LAYERS, attention, error_of, held, model
from tpcompile import api
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.passes.compilation import Compilation


def cuts(work: Compilation) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((group.name, group.axes) for group in work.plan.groups)


def again(work: Compilation) -> onnx.ModelProto:
    """The model with its plan as annotations."""
    return api.write_annotations(work.source.proto, work.analysis, work.plan.cut, work.cut_doors).model


@pytest.mark.parametrize(("name", "tp"), [(name, (2, 3, 4, 6)[k % 4]) for k, name in enumerate(zoo.names())])
def test_a_plan_written_and_read_is_the_plan(name: str, tp: int) -> None:
    work = api.plan(zoo.model(name), tp)
    assert cuts(api.plan(again(work), tp)) == cuts(work)


@pytest.mark.parametrize("pins", [{"up*": "row"}, {"table": "whole", "head": "whole"}, {"down0": "whole"}])
def test_a_plan_that_nothing_but_annotations_asks_for(pins: dict[str, str]) -> None:
    work = api.plan(model(TWO_LAYERS), 4, pins=pins)
    read = api.plan(again(work), 4)
    assert cuts(read) == cuts(work) != cuts(api.plan(model(TWO_LAYERS), 4))


def test_cuts_over_some_sub_axes_are_read_as_such() -> None:
    """2 kv heads on 4 ranks: the keys are cut over the first sub-axis, the queries over both."""
    work = api.plan(attention(8, 2), 4)
    assert {axes for _, axes in cuts(work)} >= {(0,), (1,)}
    assert cuts(api.plan(again(work), 4)) == cuts(work)


def annotate(
    source: onnx.ModelProto,
    said: dict[str, Sequence[tuple[int, int]]],
    devices: int = 4,
    order: Sequence[int] | None = None,
) -> onnx.ModelProto:
    """The model with weights annotated by hand: weight → (axis, shards) of each axis that is cut."""
    source.configuration.add(name="hand", num_devices=devices)
    for node in source.graph.node:
        for name in node.input:
            if name in said:
                entry = node.device_configurations.add(configuration_id="hand")
                spec = entry.sharding_spec.add(tensor_name=name)
                spec.device.extend(range(devices) if order is None else order)
                for axis, shards in said[name]:
                    spec.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=shards)
    return source


def test_what_a_user_annotates_holds_and_the_rest_is_planned_around_it(tmp_path: Path) -> None:
    source = annotate(model(TWO_LAYERS), {"up0": [(-1, 4)], "head": []})
    bundle = tpcompile.compile(source, 4, tmp_path / "b")
    assert held(tmp_path / "b", "up0") == [[None, [[k, k + 9]]] for k in range(0, 36, 9)]
    assert held(tmp_path / "b", "head") == [None] * 4
    assert held(tmp_path / "b", "table") != [None] * 4
    assert bundle.warnings[0] == (
        "2 annotations of weights decide the plan, as configuration 'hand' of the model says "
        "(--annotations ignore leaves them aside)"
    )
    assert error_of(source, tmp_path / "b") <= LIMIT


def test_they_can_be_ignored() -> None:
    source = annotate(model(TWO_LAYERS), {"up0": [(0, 4)]})
    ignored = api.plan(source, 4, annotations="ignore")
    assert cuts(ignored) == cuts(api.plan(model(TWO_LAYERS), 4)) != cuts(api.plan(source, 4))
    assert not ignored.warnings


def test_one_rank_has_nothing_to_follow() -> None:
    assert not api.plan(annotate(model(TWO_LAYERS), {"up0": [(0, 4)]}), 1).plan.cuts_something


def test_a_plan_file_decides_alone(tmp_path: Path) -> None:
    tpcompile.compile(model(TWO_LAYERS), 4, tmp_path / "b")
    source = annotate(model(TWO_LAYERS), {"up0": [(0, 4)]})
    assert cuts(api.plan(source, 4, plan=tmp_path / "b" / "plan.toml")) == cuts(api.plan(model(TWO_LAYERS), 4))


# -- refusals --------------------------------------------------------


def refusal(source: onnx.ModelProto, tp: int = 4, **wishes: object) -> list[str]:
    with pytest.raises(Refused) as told:
        api.plan(source, tp, **wishes)  # type: ignore[arg-type]
    return str(told.value).splitlines()


IGNORE = "use --annotations ignore"


def test_annotations_for_another_number_of_devices() -> None:
    assert refusal(annotate(model(TWO_LAYERS), {"up0": [(1, 4)]}), 3) == [
        "TP161 the ModelProto: its annotations are for 4 devices, not for 3. Use --tp 4, or --annotations ignore"
    ]


def test_several_configurations_of_as_many_devices() -> None:
    source = annotate(model(TWO_LAYERS), {"up0": [(1, 4)]})
    source.configuration.add(name="other", num_devices=4)
    assert refusal(source) == [
        f"TP161 the ModelProto: it has 2 configurations of 4 devices: hand, other. Remove all but one, or {IGNORE}"
    ]


def test_what_cannot_be_followed_is_told_all_at_once() -> None:
    source = annotate(model(TWO_LAYERS), {"up0": [(1, 5)], "down1": [(2, 4)], "bias1": [(0, 2)]})
    assert refusal(source) == [
        "TP168 MatMul a0: up0: it has 5 shards for 4 devices. Name a device for each shard, or a group of devices that "
        "have it alike",
        "TP168 Add b1: bias1: it has 2 shards for 4 devices. Name a device for each shard, or a group of devices that "
        "have it alike",
        "TP169 MatMul d1: down1: there is no axis 2: the tensor has 2. Use -2 to 1",
    ]


def test_shards_that_go_across_the_parts_of_an_axis() -> None:
    source = model("""(float[batch, 8] x) => (float[batch, 12] y, float[batch, 6] z)
    <float[8, 18] both, int64[2] parts = {12, 6}> { a = MatMul(x, both)  y, z = Split<axis = 1>(a, parts) }""")
    assert refusal(annotate(source, {"both": [(1, 3)]}, 3), 3) == [
        "TP162 MatMul a: both: axis 1 is 12 | 6: the shards go across these parts. "
        f"Correct or remove the annotation, or {IGNORE}"
    ]


def test_a_dimension_that_an_operator_needs_whole() -> None:
    source = model("""(float[batch, 8] x) => (float[batch, 6] y)
    <float[8, 6] w, float[6] scale> { a = MatMul(x, w)  y = LayerNormalization(a, scale) }""")
    assert refusal(annotate(source, {"scale": [(0, 2)]}, 2), 2) == [
        "TP162 LayerNormalization y: scale: it cannot be cut so: LayerNormalization normalises over it. "
        f"Correct or remove the annotation, or {IGNORE}"
    ]


def test_devices_in_an_order_that_no_grid_has() -> None:
    assert refusal(annotate(model(TWO_LAYERS), {"up0": [(1, 4)]}, order=[1, 0, 2, 3])) == [
        "TP162 MatMul a0: up0: no cut over axes of the grid of 2 × 2 ranks gives each device the shard it is said to "
        f"have. Give shards to devices in ascending order, or {IGNORE}"
    ]


def test_a_tensor_on_some_of_the_devices() -> None:
    assert refusal(annotate(model(TWO_LAYERS), {"up0": [(1, 2)]}, order=[0, 1])) == [
        "TP162 MatMul a0: up0: it lies on 2 of the 4 devices. Name all of them: what is not cut is on each"
    ]


def test_one_dimension_cut_here_and_whole_there() -> None:
    assert refusal(annotate(model(TWO_LAYERS), {"up0": [(1, 4)], "down1": []})) == [
        "TP163 MatMul d1: down1: it is whole there, and cut in MatMul a0: up0: one dimension, or one of layers that "
        f"are alike. Annotate them alike, or {IGNORE}"
    ]


def test_two_dimensions_of_one_product_over_the_same_devices() -> None:
    assert refusal(annotate(model(TWO_LAYERS), {"up0": [(1, 4)], "down0": [(1, 4)]})) == [
        "TP163 MatMul d0: down0 and MatMul a0: up0: they would be cut over the same devices, and meet in one tensor or "
        f"product. Annotate them alike, or {IGNORE}"
    ]


def test_annotations_and_pins_that_contradict_each_other() -> None:
    source = annotate(model(TWO_LAYERS), {"up0": [(1, 4)]})
    assert refusal(source, pins={"up1": "whole"}) == [
        "TP104 pin 'up1=whole' and the annotations of the ModelProto: they contradict each other: what one wants "
        "cut the other wants whole (the layers of a model that are alike are cut alike). Leave out one of them"
    ]


def test_a_choice_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    assert main(["plan", str(tmp_path / "m.onnx"), "--tp", "2", "--annotations", "trust"]) == 2
    text = "TP164 --annotations trust: there is no such choice. Use one of follow, ignore\n"
    assert capsys.readouterr().err == text
