"""`torchrun -m tpcompile.torch.run`: whole outputs of given and drawn inputs, what it tells, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="rank programs of torch need torch")

from tests.run import handmade  # noqa: E402
from tests.torch_fx import by_hand, on_ranks  # noqa: E402
from tpcompile.bundle.manifest import IOEntry, Manifest, Mesh, Placement, SourceFile  # noqa: E402
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.torch.bundle import save  # noqa: E402
from tpcompile.torch.feeds import Feeds  # noqa: E402
from tpcompile.torch.guards import holds, is_guard  # noqa: E402
from tpcompile.torch.run import main  # noqa: E402


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "model.tp2"
    save(by_hand.programs(2), folder)
    return folder


def torchrun(processes: int, *arguments: str) -> tuple[int, str, list[str]]:
    """Exit code, what was printed, and the lines of errors that are ours."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone",
         "-m", "tpcompile.torch.run", *arguments],
        cwd=on_ranks.ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if line.startswith("tpcompile.torch.run:")]
    return done.returncode, done.stdout, ours


def test_a_run_of_two_ranks(bundle: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", by_hand.ids().numpy())
    code, printed, errors = torchrun(
        2, str(bundle), "--input", f"ids={tmp_path / 'ids.npy'}", "--output", str(tmp_path / "out"), "--steps", "3"
    )
    assert (code, errors) == (0, [])
    assert re.sub(r"\d+\.\d ms", "T ms", printed) == (
        "2 ranks, on the CPU (gloo)\n"
        "logits: float32[3, 4, 11]\n"
        "state: float32[3, 4, 6]\n"
        "T ms a step (median of 3 steps, after a first)\n"
        "collectives of a step on rank 0: 1 all_reduce; 288 bytes\n"
    )
    assert sorted(os.listdir(tmp_path / "out")) == ["logits.npy", "state.npy"]
    for name, wanted in by_hand.model(2)(by_hand.ids()).items():
        np.testing.assert_allclose(np.load(tmp_path / "out" / f"{name}.npy"), wanted.detach(), rtol=1e-5, atol=1e-5)


def test_processes_agree_before_they_compute() -> None:
    told = on_ranks.outcomes("tests.torch_fx.run_checks", 2)
    assert told == {"check_a_refusal_of_one_is_one_of_all": "", "check_bundles_of_two_compiles": ""}


@pytest.mark.parametrize(
    ("arguments", "world", "text"),
    [
        ([], None, "TP757 BUNDLE: this process was not started by torchrun. "
                   "Start it as `torchrun --nproc-per-node 2 -m tpcompile.torch.run BUNDLE`"),
        ([], "3", "TP752 BUNDLE: 3 processes are no multiple of 2 tensor-parallel ranks. "
                  "Start 2 processes, or several times as many: torchrun --nproc-per-node 2 …"),
        (["--input", "ids"], "2", "TP100 --input: 'ids' is no NAME=FILE.npy. Give --input ids=ids.npy"),
        (["--steps", "0"], "2", "TP100 --steps: 0 is no number of passes. Give 1 or more"),
    ],
)  # fmt: skip
def test_starts_that_are_refused(
    bundle: Path, arguments: list[str], world: str | None, text: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    assert main([str(bundle), *arguments]) == 2
    assert capsys.readouterr().err.replace(str(bundle), "BUNDLE") == f"tpcompile.torch.run: {text}\n"


def test_bundles_of_onnx_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = handmade.decoder(tmp_path / "b", 2)[0]
    assert main([str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"tpcompile.torch.run: TP458 {folder}: this bundle holds ONNX models, not programs of torch. "
        f"Run it with `tpcompile run {folder} -n 2`, or compile with `--target torch`\n"
    )


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """Takes what decoders take: a mask as long as past and new tokens together, and caches in a list."""

    def forward(self, ids: Any, mask: Any, past: list[Any], half: Any, flag: bool = False) -> Any:
        keys = torch.cat([past[0], ids[:, None, :, None].expand(-1, 4, -1, 6) * 1.0], 2)
        return keys * mask[:, None, :, None], past[1] * 2, half.float()


@pytest.fixture(scope="module")
def feeds() -> Feeds:
    """Of rank 1 of 2, which takes heads 2 and 3 of four of the first cache."""
    free = torch.export.Dim.DYNAMIC
    example = (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 8), [torch.ones(2, 4, 3, 6), torch.ones(3, 7)],
               torch.ones(3).bfloat16(), True)  # fmt: skip
    shapes = ({0: free, 1: free}, {0: free, 1: free}, [{0: free, 2: free}, None], None, None)
    program = torch.export.export(Decoder(), example, dynamic_shapes=shapes, strict=False)
    cut = Placement(1, (((0, 4),), ((4, 6), (7, 8))))
    manifest = Manifest("0.1.0", SourceFile("", 0), Mesh(2), (), {"past_0": IOEntry("float32", (), cut)}, {}, "")
    return Feeds(program, manifest, 1)


def made(feeds: Feeds, **files: Path) -> tuple[Any, ...]:
    return feeds.arguments(files, torch.device("cpu"))[0]


def test_sizes_of_drawn_inputs_fit_each_other(feeds: Feeds) -> None:
    ids, mask, past, half, flag = made(feeds)
    assert flag is True and torch.equal(mask, torch.ones(mask.shape)) and half.dtype == torch.bfloat16
    assert mask.shape[1] == past[0].shape[2] + ids.shape[1] and ids.shape[0] == mask.shape[0] == past[0].shape[0]
    assert len({ids.shape[0], ids.shape[1], past[0].shape[2]}) == 3
    assert set(ids.unique().tolist()) == {0, 1} and bool((past[1] < 0).any() and (past[1] > 0).any())
    again = made(feeds)
    assert torch.equal(again[0], ids) and torch.equal(again[2][1], past[1]) and past[1].shape == (3, 7)


def test_inputs_are_given_whole_and_taken_in_part(feeds: Feeds, tmp_path: Path) -> None:
    """The program takes 4 of the cache's heads as its own 3 parts say; the sizes of the others follow."""
    whole = np.random.default_rng(1).normal(size=(3, 8, 9, 6)).astype(np.float32)
    np.save(tmp_path / "past.npy", whole)
    np.save(tmp_path / "half.npy", np.float32([1.5, -2.0, 0.25]))
    ids, mask, past, half, _ = made(feeds, past_0=tmp_path / "past.npy", half=tmp_path / "half.npy")
    assert (past[0].numpy() == whole[:, [4, 5, 7]]).all()
    assert ids.shape[0] == 3 and mask.shape[1] == 9 + ids.shape[1]
    assert half.dtype == torch.bfloat16 and half.tolist() == [1.5, -2.0, 0.25]


def test_inputs_that_do_not_fit(feeds: Feeds, tmp_path: Path) -> None:
    def refusal(array: Any, name: str) -> str:
        path = tmp_path / "x.npy"
        np.save(path, array)
        with pytest.raises(Refused) as caught:
            made(feeds, **{name: path})
        return re.sub(r"s\d+", "S", str(caught.value).replace(str(tmp_path), "FOLDER"))

    assert refusal(np.ones((2, 3), np.int32), "ids") == ("TP621 input ids: is of type int32. Give int64 [S, S]")
    assert refusal(np.ones((2, 3, 1), np.int64), "ids") == ("TP621 input ids: has shape [2, 3, 1]. Give int64 [S, S]")
    assert refusal(np.ones((2, 7), np.float64), "past_1") == (
        "TP621 input past_1: is of type float64. Give float32 [3, 7]\n"
        "TP621 input past_1: has 2 along axis 0. Give float32 [3, 7]"
    )
    assert refusal(np.ones(3), "other") == (
        "TP621 input other: is no input of this model. It has ids, mask, past_0, past_1, half"
    )
    assert refusal(np.array([{}], dtype=object), "ids") == (
        "TP609 FOLDER/x.npy: cannot be read as .npy (Object arrays cannot be loaded when allow_pickle=False). "
        "Write it with numpy.save(FILE, array)"
    )


def test_sizes_that_nothing_fits(feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds.program, "_guards_code", ["L['ids'].size()[1] == 2 + L['ids'].size()[0]"])
    assert made(feeds)[0].shape[1] == made(feeds)[0].shape[0] + 2
    monkeypatch.setattr(feeds.program, "_guards_code", ["L['ids'].size()[1] == 100 + L['ids'].size()[0]"])
    with pytest.raises(Refused) as caught:
        made(feeds)
    assert str(caught.value) == (
        "TP756 inputs: no sizes of random inputs fit what the program says of them. "
        "Give inputs with --input NAME=FILE.npy"
    )


MASK = "L['mask'].size()[1] == L['past'][0].size()[2] + 2*L['ids'].size()[1]"


def test_guards_are_read_and_not_run() -> None:
    assert is_guard(MASK)
    shapes = {"L['mask']": [2, 9], "L['past'][0]": [2, 4, 3, 6], "L['ids']": [2, 3]}
    assert holds(MASK, shapes)
    assert not holds(MASK, shapes | {"L['mask']": [2, 8]})
    assert holds(MASK, shapes | {"L['mask']": [2, None]})  # nothing is known yet
    assert not holds("min(L['ids'].size()[0], 7) > L['x'].keys[0].size()[0]", {"L['ids']": [2], "L['x'].keys[0]": [5]})


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').abort()", "L['a'].size()[0]", "L['a'].__class__ == 1", "L[\"'+print()+'\"].size()[0] == 1",
        "L['a'].size(print())[0] == 1", "(lambda: 1)() == 1", "open('x') == 1", "a.size()[0] == 1", "1 == 1 == 1",
        "L['a'].size()[print()] == 1", "min(*[1]) == 1", "1 // 0 == 1", "",
    ],
)  # fmt: skip
def test_texts_that_are_no_guards(text: str) -> None:
    assert not is_guard(text)
