"""Which shapes an engine is made for: given, derived, and those that agree with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tpcompile.bundle.manifest import IOEntry, Manifest, Mesh, Placement, Profile, ShapeRange, SourceFile, StatePair
from tpcompile.errors import Refused
from tpcompile.targets.known_sizes import settle_sizes
from tpcompile.targets.profiles import ROOMS, Wishes, as_profiles, candidates, check_wishes, read_profiles
from tpcompile.verify.files import ModelFile

Axes = Sequence[int | str]
ENCODER = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}
DECODER = {
    "input_ids": ("batch", "seq"),
    "attention_mask": ("batch", "total_seq"),
    "past.0.key": ("batch", 6, "past_seq", 8),
}
HEADS = Placement(1, (((0, 4),), ((4, 6),)))


def entry(name: str, axes: Axes) -> IOEntry:
    cache = name.startswith("past")
    return IOEntry("float32" if cache or "pixel" in name else "int64", tuple(axes), HEADS if cache else None)


def manifest_of(inputs: Mapping[str, Axes]) -> Manifest:
    caches = [name for name in inputs if name.startswith("past")]
    return Manifest(
        tpcompile="0", source=SourceFile("m.onnx", 0), mesh=Mesh(2), ranks=(), plan="plan.toml",
        inputs={name: entry(name, axes) for name, axes in inputs.items()},
        outputs={}, state=tuple(StatePair(name, f"new.{name}", 2, "append") for name in caches),
    )  # fmt: skip


def rank_of(inputs: Mapping[str, Axes], rank: int, nodes: Sequence[onnx.NodeProto] = ()) -> ModelFile:
    """A rank's model that has these inputs, caches cut."""
    infos = []
    for name, axes in inputs.items():
        found = entry(name, axes)
        shape = list(axes)
        if found.placement is not None:
            shape[found.placement.axis] = found.placement.local_size(rank)
        kind = TensorProto.FLOAT if found.dtype == "float32" else TensorProto.INT64
        infos.append(helper.make_tensor_value_info(name, kind, [size or None for size in shape]))
    weight = helper.make_tensor("kernel", TensorProto.FLOAT, [8, 4, 1, 1], [0.0] * 32)
    return ModelFile("rank", Path("."), helper.make_model(helper.make_graph(nodes, "g", infos, [], [weight])))


def first(inputs: Mapping[str, Axes], wishes: Wishes = Wishes({}), rank: int = 0) -> tuple[Profile, ...]:  # noqa: B008
    return next(candidates(rank_of(inputs, rank), manifest_of(inputs), rank, wishes)).profiles


def wished(*texts: str, **sizes: int) -> Wishes:
    return Wishes(sizes, read_profiles(texts))


def test_inputs_that_share_a_symbol_agree() -> None:
    same = ShapeRange((1, 1), (1, 128), (4, 512))
    assert first(ENCODER) == ({"input_ids": same, "attention_mask": same},)


@pytest.mark.parametrize("total", ["total_seq", "past_seq + seq"])
def test_a_decoder_has_a_profile_for_prompts_and_one_for_steps(total: str) -> None:
    prompt, step = first({**DECODER, "attention_mask": ("batch", total)})
    assert prompt == {
        "input_ids": ShapeRange((1, 1), (1, 128), (4, 512)),
        "attention_mask": ShapeRange((1, 1), (1, 128), (4, 2560)),
        "past.0.key": ShapeRange((1, 4, 0, 8), (1, 4, 0, 8), (4, 4, 2048, 8)),
    }
    assert step == {
        "input_ids": ShapeRange((1, 1), (1, 1), (4, 1)),
        "attention_mask": ShapeRange((1, 2), (1, 513), (4, 2049)),
        "past.0.key": ShapeRange((1, 4, 1, 8), (1, 4, 512, 8), (4, 4, 2048, 8)),
    }


def test_caches_have_the_ranks_own_sizes() -> None:
    assert [first(DECODER, rank=rank)[0]["past.0.key"].max for rank in (0, 1)] == [(4, 4, 2048, 8), (4, 2, 2048, 8)]
    given = wished("past.0.key=1x6x0x8:1x6x20x8:2x6x30x8")
    assert first(DECODER, given, rank=1)[0]["past.0.key"] == ShapeRange((1, 2, 0, 8), (1, 2, 20, 8), (2, 2, 30, 8))


def test_what_is_given_binds_the_rest() -> None:
    (made,) = first(DECODER, wished("input_ids=1x1:2x16:3x64"))
    assert made["attention_mask"] == ShapeRange((1, 1), (2, 16 + 512), (3, 64 + 2048))
    assert made["past.0.key"] == ShapeRange((1, 4, 0, 8), (2, 4, 512, 8), (3, 4, 2048, 8))
    (made,) = first(DECODER, wished("input_ids=1x1:1x4:1x8", "attention_mask=1x1:1x24:1x40"))
    assert made["past.0.key"] == ShapeRange((1, 4, 0, 8), (1, 4, 20, 8), (1, 4, 32, 8))


def test_a_name_that_comes_again_begins_another_profile() -> None:
    both = first(ENCODER, wished("input_ids=1x1:1x2:1x4", "input_ids=8x1:8x2:8x4"))
    assert [profile["attention_mask"].opt for profile in both] == [(1, 2), (8, 2)]


def test_sizes_are_the_usual_ones_and_raise_the_greatest() -> None:
    (made,) = first(ENCODER, Wishes({"batch": 8, "seq": 64}))
    assert made["input_ids"] == ShapeRange((1, 1), (8, 64), (8, 512))
    (made,) = first({"input_ids": ("n", "length")}, Wishes({"n": 2, "length": 900}))
    assert made["input_ids"] == ShapeRange((1, 1), (2, 900), (4, 900))


def test_a_step_has_one_token_whatever_the_usual_length() -> None:
    for name in ("seq", "past_seq"):
        prompt, step = first(DECODER, Wishes({name: 64}))
        assert step["input_ids"] == ShapeRange((1, 1), (1, 1), (4, 1))
        assert prompt["input_ids"].max == (4, 512)
    assert step["past.0.key"].opt == (1, 4, 64, 8)


def test_each_candidate_asks_for_less_room_than_the_one_before() -> None:
    made = [*candidates(rank_of(DECODER, 0), manifest_of(DECODER), 0, Wishes({}))]
    assert [trial.room for trial in made] == sorted((trial.room for trial in made), reverse=True)
    assert {trial.room for trial in made} == set(ROOMS)
    for trial in made:
        prompt = trial.profiles[0]
        assert prompt["input_ids"].max[1] + prompt["past.0.key"].max[2] <= trial.room
    seen = [trial.profiles for trial in made]
    assert all(profiles not in seen[:at] for at, profiles in enumerate(seen))


def test_where_masks_do_not_span_the_past_or_caches_cannot_be_empty() -> None:
    made = [*islice(candidates(rank_of(DECODER, 0), manifest_of(DECODER), 0, Wishes({})), 4)]
    masks = [trial.profiles[0]["attention_mask"].max[1] for trial in made]
    least = [trial.profiles[0]["past.0.key"].min[2] for trial in made]
    assert masks == [2560, 2560, 512, 512] and least == [0, 1, 0, 1]


def test_images_are_square_and_have_the_channels_of_the_first_convolution() -> None:
    inputs = {"pixel_values": ("batch", "num_channels", "height", "width")}
    convolution = helper.make_node("Conv", ["pixel_values", "kernel"], ["y"], group=1)
    model = rank_of(inputs, 0, [convolution])
    settle_sizes(model)
    made = [*candidates(model, manifest_of(inputs), 0, Wishes({}))]
    assert [trial.profiles[0]["pixel_values"].max for trial in made][:2] == [(4, 4, 224, 224), (4, 4, 384, 384)]
    assert (4, 4, 32, 32) in [trial.profiles[0]["pixel_values"].max for trial in made]
    made = [*candidates(model, manifest_of(inputs), 0, Wishes({"height": 48, "width": 96}))]
    assert {trial.profiles[0]["pixel_values"].opt for trial in made} == {(1, 4, 48, 96)}


def test_sizes_that_are_told_as_texts_become_numbers_and_those_without_a_name_get_one() -> None:
    inputs: dict[str, Axes] = {"input_ids": ("", ""), "past.0.key": ("s0", 6, "s1", "16")}
    model = rank_of(inputs, 0)
    settle_sizes(model)
    (ids, past) = (value.type.tensor_type.shape.dim for value in model.graph.input)
    assert [dim.dim_param for dim in ids] == ["input_ids.0", "input_ids.1"]
    assert [dim.dim_value for dim in past] == [0, 4, 0, 16]


def test_fixed_shapes_need_no_profile() -> None:
    assert first({"input_ids": (2, 8)}) == ({},)


def test_profiles_from_python() -> None:
    one = {"x": ((1, 2), (1, 3), (1, 4))}
    assert as_profiles(one) == ({"x": ShapeRange((1, 2), (1, 3), (1, 4))},)
    assert as_profiles([one, one]) == as_profiles(one) * 2
    assert as_profiles(None) == ()


def test_words_that_are_no_profile() -> None:
    with pytest.raises(Refused) as caught:
        read_profiles(["x=1x2:3x4", "1:2:3", "x=axb:1:2"])
    form = "it is not of the form NAME=min:opt:max. Write --profile input_ids=1x1:1x16:4x512"
    assert str(caught.value).splitlines() == [
        f"TP100 --profile {text}: {form}, the least, usual and greatest shape"
        for text in ("x=1x2:3x4", "1:2:3", "x=axb:1:2")
    ]


FAULTS = [
    ("labels=1:2:3", "the model has no such input. Its inputs are input_ids, attention_mask, past.0.key"),
    ("input_ids=1x1:2x2:3", "its three shapes differ in their number of axes. Give batch x seq thrice"),
    ("input_ids=1:2:3", "gives 1 sizes for an input of 2 axes. Give batch x seq"),
    ("input_ids=4x1:2x8:4x9",
     "[4, 1], [2, 8], [4, 9] do not ascend. Give the least, the usual and the greatest shape, in this order"),
    ("past.0.key=1x4x0x8:1x4x1x8:1x4x2x8",
     "gives 4 for axis 1, which always is 6. Give batch x 6 x past_seq x 8; sizes are those of the whole model"),
]  # fmt: skip


def test_faults_of_profiles_come_together() -> None:
    for text, fact in FAULTS:
        with pytest.raises(Refused) as caught:
            check_wishes(manifest_of(DECODER), wished(text))
        assert str(caught.value) == f"TP706 --profile {text.partition('=')[0]}: {fact}"
    with pytest.raises(Refused) as caught:
        check_wishes(manifest_of(DECODER), wished("a=1:2:3", "b=1:2:3", seq=0, height=3))
    assert [fault.code for fault in caught.value.faults] == ["TP706", "TP706", "TP106", "TP107"]
    assert str(caught.value).splitlines()[-1] == (
        "TP107 --sizes height: the model has no such size. Use batch, seq, past, past_seq, total_seq"
    )


def test_values_of_an_input_of_fixed_shape() -> None:
    inputs: dict[str, Axes] = {"input_ids": ("batch", "seq"), "length": ()}
    (made,) = first(inputs, wished("length=1:16:512"))
    assert made["length"] == ShapeRange((1,), (16,), (512,))
