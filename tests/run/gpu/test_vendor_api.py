"""What GPU code calls is there in the libraries that are installed, and takes what it is given.

Nothing of it runs here for want of a GPU: names, parameters and types are held against the libraries themselves. Where
a library is not installed, its part is skipped.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.run import every_collective
from tpcompile.bundle.manifest import CollectiveEntry, Manifest
from tpcompile.errors import Refused
from tpcompile.run import self_test
from tpcompile.run.bound_engine import BoundEngine
from tpcompile.run.cuda import Gpu

ROOT = Path(__file__).parents[3]
RUN = ROOT / "tpcompile" / "run"
CUDA, NCCL, TENSORRT = "cuda.core", "nccl.core", "tensorrt_rtx"
STANDS_FOR = {
    "cuda.py": {
        "Device": f"{CUDA}:Device", "device": f"{CUDA}:Device", "self.device": f"{CUDA}:Device",
        "self.stream": f"{CUDA}:Stream", "event": f"{CUDA}:Event", "Buffer": f"{CUDA}:Buffer",
        "place": f"{CUDA}:Buffer", "driver": "cuda.bindings.driver:",
    },
    "nccl.py": {
        "core": f"{NCCL}:", "core.Communicator": f"{NCCL}:Communicator", "core.UniqueId": f"{NCCL}:UniqueId",
        "nccl": "nccl.bindings.nccl:", "comm": f"{NCCL}:Communicator", "nccl.Result": "nccl.bindings.nccl:Result",
        "nccl.DataType": "nccl.bindings.nccl:DataType",
    },
    "bound_engine.py": {
        "library": f"{TENSORRT}:", "self.library": f"{TENSORRT}:", "self.context": f"{TENSORRT}:IExecutionContext",
        "engine": f"{TENSORRT}:ICudaEngine", "self.engine": f"{TENSORRT}:ICudaEngine",
        "self._runtime": f"{TENSORRT}:Runtime", "library.ILogger": f"{TENSORRT}:ILogger",
        "library.TensorIOMode": f"{TENSORRT}:TensorIOMode", "library.TensorLocation": f"{TENSORRT}:TensorLocation",
        "builder": "cuda.core.graph:GraphBuilder", "self.gpu.stream": f"{CUDA}:Stream",
    },
    "self_test.py": {
        "library": f"{TENSORRT}:", "builder": f"{TENSORRT}:Builder", "parser": f"{TENSORRT}:OnnxParser",
        "config": f"{TENSORRT}:IBuilderConfig", "library.ComputeCapability": f"{TENSORRT}:ComputeCapability",
    },
}  # fmt: skip
"""By file: what a name in it holds, as module:attribute."""


def uses(file: str) -> Iterator[tuple[str, str, ast.Call | None]]:
    """What is asked of libraries in a file: what it is asked of, the name, and the call where it is called."""
    table = STANDS_FOR[file]
    tree = ast.parse((RUN / file).read_text())
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in table:
            yield table[ast.unparse(node.value)], node.attr, called.get(id(node))


USES = sorted({(holder, name, file) for file in STANDS_FOR for holder, name, _ in uses(file)})


def held(holder: str) -> Any:
    module, _, name = holder.partition(":")
    if module.partition(".")[0] in ("cuda", "nccl") and importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    found = pytest.importorskip(module)
    return getattr(found, name) if name else found


@pytest.mark.parametrize(("holder", "name", "file"), USES)
def test_what_is_used_is_there(holder: str, name: str, file: str) -> None:
    assert hasattr(held(holder), name)


def test_nothing_is_left_out() -> None:
    """The calls that matter are among those found above: the table has not lost them."""
    names = {name for _, name, _ in USES}
    assert names >= {
        "set_communicator", "execute_async_v3", "deserialize_cuda_engine", "set_tensor_address", "set_input_shape",
        "get_aliased_input_tensor", "all_reduce", "all_gather", "init", "from_bytes", "get_async_error", "allocate",
        "set_current", "create_stream", "copy_from", "from_handle", "record", "sync", "build_serialized_network",
    }  # fmt: skip


def parameters(function: Any) -> list[str] | None:
    """The names of a function's parameters, `self` aside; None where it does not tell."""
    try:
        found = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        told = re.search(r"^\w+\((.*?)\)(?: ->|$)", function.__doc__ or "", re.MULTILINE)
        if told is None or "*args" in told[1]:
            return None
        found = [re.split(r"[:=]", part)[0].split()[-1] for part in re.sub(r"\[.*?\]", "", told[1]).split(",") if part]
    return [name for name in found if name not in ("self", "cls")]


@pytest.mark.parametrize("file", STANDS_FOR)
def test_calls_give_what_is_taken(file: str) -> None:
    for holder, name, call in uses(file):
        taken = parameters(getattr(held(holder), name)) if call is not None else None
        if call is None or taken is None or "args" in taken or name == "__init__":
            continue
        given = len(call.args) + len(call.keywords)
        assert given <= len(taken), (name, taken)
        assert {keyword.arg for keyword in call.keywords} <= set(taken), (name, taken)


def test_answers_are_of_the_kind_that_is_asked_for() -> None:
    trt = held(f"{TENSORRT}:")
    context, engine = trt.IExecutionContext, trt.ICudaEngine
    for function in (context.set_communicator, context.execute_async_v3, context.set_tensor_address,
                     context.set_optimization_profile_async, context.is_stream_capturable):  # fmt: skip
        assert re.search(r"\) -> bool", function.__doc__), function
    assert "CapsuleType" in context.set_communicator.__doc__
    assert re.search(r"\) -> list\[str\]", context.infer_shapes.__doc__)
    assert re.search(r"\) -> int", context.get_max_output_size.__doc__)
    assert re.search(r"\) -> str", engine.get_aliased_input_tensor.__doc__)
    assert "or None" in trt.Runtime.deserialize_cuda_engine.__doc__


def test_a_plan_that_the_library_does_not_read() -> None:
    """It gives None, without an exception; the refusal has its words."""
    trt: Any = held(f"{TENSORRT}:")
    with pytest.raises(Refused) as refused:
        BoundEngine(trt, b"no plan at all", cast(Gpu, None), "engine rank0.engine")
    said = re.escape(f"TP653 engine rank0.engine: tensorrt_rtx {trt.__version__} cannot read it (")
    assert re.match(
        said + r"\S.*\)\. Build the engines with this version of the library, for this GPU$", str(refused.value)
    )
    assert "it does not say why" not in str(refused.value)


def test_low_functions_of_nccl_take_its_own_handle_and_no_number() -> None:
    """What makes the stand-in's demand a true one: the conversion comes before any look for the library."""
    nccl = held("nccl.bindings.nccl:")
    with pytest.raises(TypeError, match="Cannot convert int to"):
        nccl.all_reduce(0, 0, 0, 7, 0, 1234, 0)


STUBS = """
from cuda.core._device import Device as Device
from cuda.core._event import Event as Event
from cuda.core._memory import Buffer as Buffer
from cuda.core._stream import Stream as Stream
"""


def test_types_hold_against_the_stubs_of_cuda(tmp_path: Path) -> None:
    """The stubs lie one folder deeper than the package that they describe: links bring them where they belong."""
    found = Path(held(f"{CUDA}:").__file__).parent  # once imported it is that of its CUDA version
    stubs = found if found.name == "cu13" else found / "cu13"
    if not stubs.is_dir():
        pytest.skip("cuda-core is of a build without stubs")
    pytest.importorskip("mypy")
    core = tmp_path / "cuda" / "core"
    core.mkdir(parents=True)
    for path in stubs.iterdir():
        if path.name != "__init__.py":
            (core / path.name).symlink_to(path)
    (core / "__init__.pyi").write_text(STUBS)
    probe = tmp_path / "probe.py"
    probe.write_text("from cuda.core import Device\nDevice(0).no_such_thing()\n")
    files = [str(probe), *(str(RUN / name) for name in ("cuda.py", "nccl.py", "gpu_executor.py"))]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports", "silent", "--cache-dir", str(tmp_path / "cache"), *files],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={"MYPYPATH": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    faults = [line for line in done.stdout.splitlines() if ": error:" in line and "/cuda/core/" not in line]
    assert faults == [f'{probe}:2: error: "Device" has no attribute "no_such_thing"  [attr-defined]']


def test_the_self_test_builds(tmp_path: Path) -> None:
    """With every collective, in groups too, by the library itself: for a GPU that is not here."""
    trt = held(f"{TENSORRT}:")
    bundle, _, _ = every_collective.bundle(tmp_path / "b", "float32")
    found = Manifest.read(bundle)
    entries = [CollectiveEntry(9, "broadcast", "v", "float32", (), "", "")]
    kinds = self_test.kinds(replace(found, collectives=(*found.collectives, *entries)))
    assert len(kinds) >= 9
    for kind, rank in itertools.product(kinds, (0, 3)):
        capability = SimpleNamespace(CURRENT=trt.ComputeCapability.SM89)
        library = SimpleNamespace(**{**vars(trt), "ComputeCapability": capability})
        plan = self_test.build(library, self_test.model([kind], rank, 4))
        assert plan.nbytes > 1000


def test_groups_of_several_sizes_in_one_engine_are_why_each_kind_is_tried_alone() -> None:
    """The library takes one size of group for all that it fuses. Where this builds, the self-test can do with less."""
    trt = held(f"{TENSORRT}:")
    capability = SimpleNamespace(CURRENT=trt.ComputeCapability.SM89)
    library = SimpleNamespace(**{**vars(trt), "ComputeCapability": capability})
    kinds = [self_test.Kind("all_reduce", (), "a"), self_test.Kind("all_gather", ((0, 1), (2, 3)), "b")]
    with pytest.raises(Refused, match=r"expected shape \[16,3\] but got \[8,3\]"):
        self_test.build(library, self_test.model(kinds, 0, 4))
