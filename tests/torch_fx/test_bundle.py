"""Bundles of rank programs: written whole or not at all, loaded rank by rank, merged back bit for bit."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="rank programs of torch need torch")
library: Any = pytest.importorskip("safetensors.torch", reason="what is written is read with safetensors' own library")

from tests.run import handmade  # noqa: E402
from tests.torch_fx import by_hand, on_ranks  # noqa: E402
from tpcompile.bundle.manifest import Manifest  # noqa: E402
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.graph.program import Weight  # noqa: E402
from tpcompile.run.launch import add_launch_arguments, run_command  # noqa: E402
from tpcompile.torch.bundle import RankPrograms, load, save  # noqa: E402
from tpcompile.torch.holdings import Held  # noqa: E402
from tpcompile.torch.merging import merge, merge_states  # noqa: E402
from tpcompile.weights import safetensors  # noqa: E402
from tpcompile.weights.ranges import Part, take  # noqa: E402
from tpcompile.weights.source import FileBytes  # noqa: E402

AGAIN = "Compile the model again"


@pytest.fixture(scope="module")
def made() -> RankPrograms:
    return by_hand.programs(2)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, made: RankPrograms) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "model.tp2"
    save(made, folder)
    return folder


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    """A bundle that a test may spoil."""
    folder = tmp_path / "model.tp2"
    folder.mkdir()
    for path in bundle.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def source() -> dict[str, Any]:
    """The tensors that a checkpoint of the model holds."""
    return dict(by_hand.Model().state_dict())


def bits(tensor: Any) -> bytes:
    raw: bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


def refusal(call: Callable[[], Any], place: Path) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return str(caught.value).replace(str(place), "PLACE")


def test_what_a_bundle_holds(bundle: Path) -> None:
    assert sorted(path.name for path in bundle.iterdir()) == [
        "bundle.json", "plan.toml", "rank0.pt2", "rank0.safetensors", "rank1.pt2", "rank1.safetensors"
    ]  # fmt: skip
    assert (bundle / "plan.toml").read_text() == "# the plan\n"
    content = json.loads((bundle / "bundle.json").read_text())
    assert content["dialect"] == "torch" and content["mesh"] == {"tp": 2, "pp": 1}
    assert content["ranks"][1]["model"] == "rank1.pt2"
    size = (bundle / "rank1.safetensors").stat().st_size
    assert content["ranks"][1]["data"] == [{"file": "rank1.safetensors", "bytes": size}]
    assert torch.export.pt2_archive.is_pt2_package(str(bundle / "rank0.pt2"))
    assert (bundle / "rank0.pt2").stat().st_size < 60_000


def test_each_file_is_one_of_safetensors_with_the_parts_of_its_rank(bundle: Path, made: RankPrograms) -> None:
    for rank in range(2):
        found = library.load_file(bundle / f"rank{rank}.safetensors")
        assert found.pop("own").item() == rank - 0.5
        assert found.keys() == {weight.name for weight in made.weights}
        tensors = source() | {"steps": by_hand.Model().steps}
        for weight in made.weights:
            whole = tensors[weight.name].float().numpy()  # exact: numpy has no bfloat16
            assert (found[weight.name].float().numpy() == take(whole, weight.parts[rank])).all()
            assert found[weight.name].dtype == tensors[weight.name].dtype


def test_the_files_say_what_their_tensors_are_parts_of(bundle: Path) -> None:
    said = json.loads(safetensors.read(bundle / "rank1.safetensors")[1]["tpcompile"])
    assert said["gate_up.weight"] == {
        "source": "gate_up.weight", "shape": [20, 6], "ranges": [[[3, 10], [13, 20]], None], "zeroed": False,
        "kept": True, "also": [],
    }  # fmt: skip
    assert said["embed.weight"] == {
        "source": "embed.weight", "shape": [11, 6], "ranges": None, "zeroed": False, "kept": True,
        "also": ["head.weight"],
    }  # fmt: skip
    assert (said["steps"]["kept"], said["own"]["kept"], said["own"]["source"]) == (False, False, None)


def test_a_rank_reads_only_its_own_files(copied: Path) -> None:
    for name in ("rank0.pt2", "rank0.safetensors", "plan.toml"):
        (copied / name).unlink()
    program = load(copied, 1)
    assert torch.equal(program.state_dict["down.weight"], source()["down.weight"][:, 3:10])
    assert torch.equal(program.constants["own"], torch.tensor(0.5))
    assert all(tensor.device.type == "cpu" for tensor in program.state_dict.values())
    missing = "TP455 PLACE/rank0.pt2: the file that rank 0 needs is not there. "
    missing += "Copy the whole bundle folder, or compile the model again"
    assert refusal(lambda: load(copied, 0), copied) == missing


def test_a_rank_is_loaded_to_another_device(bundle: Path) -> None:
    """Its graph makes new tensors there as well; "meta" stands for a GPU."""
    program = load(bundle, 1, "meta")
    values = [node.meta["val"] for node in program.graph.nodes if node.op != "output"]
    assert {tensor.device.type for tensor in (*program.state_dict.values(), *program.constants.values())} == {"meta"}
    assert {value.device.type for value in values if isinstance(value, torch.Tensor)} == {"meta"}
    assert all(isinstance(program.state_dict[name], torch.nn.Parameter) for name in program.graph_signature.parameters)


def test_training_a_loaded_rank_leaves_the_file_alone(copied: Path) -> None:
    before = (copied / "rank0.safetensors").read_bytes()
    with torch.no_grad():
        load(copied, 0).module().down.weight.zero_()
    assert (copied / "rank0.safetensors").read_bytes() == before


def test_two_ranks_compute_and_train_what_one_device_does(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUNDLE", str(bundle))
    monkeypatch.setenv("STATES", str(tmp_path))
    told = on_ranks.outcomes("tests.torch_fx.bundle_checks", 2)
    assert told == {"check_the_numbers_of_one_device": "", "check_training_steps_of_one_device": ""}
    merge(bundle, tmp_path / "out.safetensors", [tmp_path / "0.safetensors", tmp_path / "1.safetensors"])
    found, one = library.load_file(tmp_path / "out.safetensors"), torch.load(tmp_path / "one.pt")
    assert found.keys() == one.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
        assert name == "scale" or not torch.equal(tensor, source()[name])  # it was trained
    assert torch.equal(found["head.weight"], found["embed.weight"])
    by_hand.Model().load_state_dict(found, strict=True)


@pytest.mark.parametrize("tp", [2, 3])
def test_untrained_ranks_merge_into_the_source_bit_for_bit(tp: int, bundle: Path, tmp_path: Path) -> None:
    if tp != 2:
        bundle = tmp_path / "other.tp3"
        save(by_hand.programs(tp), bundle)
    out = tmp_path / "out.safetensors"
    merge(bundle, out)
    found = library.load_file(out)
    assert {name: bits(tensor) for name, tensor in found.items()} == {
        name: bits(tensor) for name, tensor in source().items()
    }
    assert refusal(lambda: merge(bundle, out), tmp_path) == (
        "TP411 PLACE/out.safetensors: exists already. Choose another output, or replace it with force=True"
    )
    merge(bundle, out, force=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["out.safetensors"]


def states(bundle: Path) -> list[dict[str, Any]]:
    return [{name: tensor.clone() for name, tensor in load(bundle, rank).module().state_dict().items()}
            for rank in range(2)]  # fmt: skip


def test_states_in_another_type_and_of_odd_values(bundle: Path, tmp_path: Path) -> None:
    """Bits count, not values: what is no number and negative zeros come back as they are."""
    mine = [{name: tensor.double() if name != "norm" else tensor for name, tensor in state.items()}
            for state in states(bundle)]  # fmt: skip
    for state in mine:
        state["down.bias"][:3] = torch.tensor([float("nan"), -0.0, float("inf")]).double()
    merge(bundle, tmp_path / "out.safetensors", mine)
    found = library.load_file(tmp_path / "out.safetensors")
    assert found["gate_up.weight"].dtype == torch.float64 and found["norm"].dtype == torch.bfloat16
    assert bits(found["down.bias"]) == bits(mine[0]["down.bias"])
    assert torch.equal(found["gate_up.weight"], source()["gate_up.weight"].double())


ALIKE = "Merge the states of one training step, of the ranks of one replica"


def nudge(state: dict[str, Any], name: str) -> None:
    state[name].view(-1)[1:3] += 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda mine: nudge(mine[1], "down.bias"),
         f"TP754 down.bias: ranks 0 and 1 differ in 2 elements that both hold. {ALIKE}"),
        (lambda mine: mine[0].update(norm=mine[0]["norm"].float()),
         f"TP754 norm: rank 0 has it in float32, rank 1 in bfloat16. {ALIKE}"),
        (lambda mine: mine[1].pop("gate_up.bias"),
         "TP755 gate_up.bias: the state of rank 1 lacks it. "
         "Give the state_dict() of the module that this rank's program makes"),
        (lambda mine: mine.reverse(),
         "TP755 gate_up.weight: the state of rank 0 has it as [14, 6] instead of [6, 6]. "
         "Give the state_dict() of the module that this rank's program makes"),
        (lambda mine: mine.pop(),
         "TP755 merge: 1 states for 2 ranks. Give the states of all ranks of one replica, in their order"),
    ],
    ids=["differ", "types", "lacks", "order", "count"],
)  # fmt: skip
def test_states_that_do_not_fit(bundle: Path, tmp_path: Path, change: Callable[[Any], Any], text: str) -> None:
    mine = states(bundle)
    change(mine)
    assert refusal(lambda: merge(bundle, tmp_path / "out.safetensors", mine), tmp_path) == text
    assert list(tmp_path.iterdir()) == []


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Change what a rank's file says of its tensors; bundle.json is told the new size."""
    tensors = library.load_file(path)
    metadata = safetensors.read(path)[1]
    said = json.loads(metadata["tpcompile"])
    change(said)
    library.save_file(tensors, path, metadata | {"tpcompile": json.dumps(said)})
    manifest = json.loads((path.parent / "bundle.json").read_text())
    manifest["ranks"][int(path.stem[-1])]["data"][0]["bytes"] = path.stat().st_size
    (path.parent / "bundle.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda said: said["down.weight"].update(ranges=[None, [[0, 2]]]),
         f"TP457 PLACE/rank0.safetensors: does not hold the part of down.weight that it speaks of. {AGAIN}"),
        (lambda said: said["down.weight"].update(ranges=[None]),
         "TP453 PLACE/rank0.safetensors: tpcompile.down.weight.ranges should be a list of ranges per axis, "
         f"found [None]. {AGAIN}"),
        (lambda said: said["down.weight"].update(ranges=[None, [[3, 0]]]),
         "TP453 PLACE/rank0.safetensors: tpcompile.down.weight.ranges should be a list of ranges per axis, "
         f"found [None, [[3, 0]]]. {AGAIN}"),
        (lambda said: said["down.weight"].pop("shape"),
         f"TP453 PLACE/rank0.safetensors: lacks the key tpcompile.down.weight.shape. {AGAIN}"),
        (lambda said: said.update(other=said["down.weight"]),
         f"TP457 PLACE/rank0.safetensors: does not hold the part of other that it speaks of. {AGAIN}"),
    ],
    ids=range(5),
)  # fmt: skip
def test_files_that_contradict_themselves(copied: Path, change: Callable[[Any], None], text: str) -> None:
    rewrite(copied / "rank0.safetensors", change)
    assert refusal(lambda: load(copied, 0), copied) == text


def test_parts_that_leave_something_out_or_were_zeros(copied: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    for rank in range(2):
        rewrite(copied / f"rank{rank}.safetensors", lambda said: said["down.bias"].update(zeroed=True))
    assert refusal(lambda: merge(copied, out), copied) == (
        "TP754 down.bias: rank 0 was to hold zeros as down.bias, and does not. "
        "Do not train programs that hold zeroed copies"
    )
    mine = states(copied)
    for state in mine:
        state["down.bias"].zero_()
    assert refusal(lambda: merge(copied, out, mine), copied) == (
        f"TP754 down.bias: there are elements of it that no rank holds. {AGAIN}"
    )


def test_one_tensor_in_two_versions_must_stay_one(tmp_path: Path) -> None:
    """A tensor that is used twice and cut in two ways has two names in a rank's program."""
    rows, columns = Part((((0, 2),), None)), Part((None, ((0, 3),)))
    ranks = [{"w": Held("w", (4, 3), rows), "w_again": Held("w", (4, 3), columns)},
             {"w": Held("w", (4, 3), Part((((2, 4),), None)))}]  # fmt: skip
    whole = torch.randn(4, 3)
    states = [{"w": whole[:2], "w_again": whole}, {"w": whole[2:]}]
    merge_states(ranks, states, tmp_path / "out.safetensors")
    assert torch.equal(library.load_file(tmp_path / "out.safetensors")["w"], whole)
    states[0]["w_again"] = whole + torch.eye(4, 3)
    assert refusal(lambda: merge_states(ranks, states, tmp_path / "other.safetensors"), tmp_path) == (
        "TP754 w: rank 0 holds it twice, and the two differ in 2 elements. "
        "Train a model that uses it once, or pin it so that both uses are cut alike"
    )


def test_a_rank_that_does_not_exist(bundle: Path) -> None:
    assert refusal(lambda: load(bundle, 2), bundle) == (
        "TP108 rank 2: the bundle has ranks 0 to 1. Ask for one of them"
    )


def test_files_of_another_compile(copied: Path) -> None:
    (copied / "rank0.pt2").write_bytes((copied / "rank1.pt2").read_bytes())
    assert refusal(lambda: load(copied, 0), copied) == (
        "TP608 PLACE/rank0.pt2: is not the file that bundle.json describes. "
        "It was changed, or belongs to another compile: copy the whole bundle again"
    )
    path = copied / "rank1.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    found = path.stat().st_size
    assert refusal(lambda: load(copied, 1), copied) == (
        f"TP456 PLACE/rank1.safetensors: holds {found} bytes instead of {found + 4}. "
        "The copy is incomplete or comes from another compile: copy the bundle again"
    )


def test_bundles_of_the_other_kind(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = handmade.decoder(tmp_path / "b", 2)[0]
    assert refusal(lambda: load(other, 0), other) == (
        "TP458 PLACE: this bundle holds ONNX models, not programs of torch. "
        "Run it with `tpcompile run PLACE -n 2`, or compile with `--target torch`"
    )
    text = (
        f"TP458 {bundle}: this bundle holds programs of torch, not ONNX models. Run it with "
        f"`torchrun --nproc-per-node 2 -m tpcompile.torch.run {bundle}`, or compile without `--target torch`"
    )
    with pytest.raises(Refused) as caught:
        Manifest.read(bundle)
    assert str(caught.value) == text
    parser = argparse.ArgumentParser()
    add_launch_arguments(parser)
    assert run_command(parser.parse_args([str(bundle)])) == 2
    assert capsys.readouterr().err == text + "\n"


def test_a_bundle_appears_whole_or_not_at_all(made: RankPrograms, bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model.tp2"
    lost = Weight("embed.weight", "float32", (11, 6), FileBytes(tmp_path / "gone.bin", 0, 264))
    weights = [replace(weight, weight=lost) if weight.name == lost.name else weight for weight in made.weights]
    broken = replace(made, weights=weights)
    assert refusal(lambda: save(broken, folder), tmp_path) == (
        "TP402 PLACE/gone.bin: weight 'embed.weight' cannot be read: No such file or directory. "
        "Put the model's data files back beside it and make them readable"
    )
    assert list(tmp_path.iterdir()) == []
    save(made, folder)
    assert refusal(lambda: save(made, folder), tmp_path) == (
        "TP411 PLACE/model.tp2: exists already. Choose another output, or replace it with --force"
    )
    save(made, folder, force=True)
    assert sorted(os.listdir(folder)) == sorted(os.listdir(bundle)) and os.listdir(tmp_path) == ["model.tp2"]
    seen: list[tuple[int, int]] = []
    save(made, folder, force=True, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
