"""The layout holds: who may import whom, what stays light, and how the folders are linked."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tpcompile"

ORDER = ["errors", "graph", "dims", "plan", "report_page", "annotations", "passes", "pipeline", "api", "cli"]
"""Each may import those before it, never those after it."""

BESIDE = ["weights", "bundle", "targets", "run", "verify"]
"""Used by the row above from `passes` on; they know nothing of what is done to a graph."""

HEAVY = {"onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime", "onnx_graphsurgeon", "onnxscript", "torch"}

LONG: dict[str, str] = {}
"""Files over 400 lines, each with the reason why it is better in one piece."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; the folders behind the two links included."""
    found = {}
    for folder in (PACKAGE, PACKAGE / "passes", PACKAGE / "recipes"):  # rglob does not follow links
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    """The dotted names that a module imports anywhere, except for type checkers alone."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (start, node.module) if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def room(module: str) -> str:
    """The part of the package that a module belongs to: tpcompile.dims.rules.matmul → dims."""
    return module.split(".")[1] if "." in module else ""


def uses(module: str, path: Path) -> set[str]:
    """The rooms of tpcompile that a module imports from."""
    return {room(name) for name in imports(module, path) if name.startswith("tpcompile.")} - {room(module)}


@pytest.mark.parametrize("module", [name for name in modules() if room(name) in ORDER])
def test_imports_point_one_way(module: str) -> None:
    later = set(ORDER[ORDER.index(room(module)) + 1 :])
    assert not uses(module, modules()[module]) & later


@pytest.mark.parametrize("module", [name for name in modules() if room(name) in BESIDE])
def test_what_stands_beside_knows_no_passes(module: str) -> None:
    assert not uses(module, modules()[module]) & {"passes", "pipeline", "api", "cli"}


@pytest.mark.parametrize("module", [name for name in modules() if room(name) in ("dims", "plan")])
def test_dims_and_plan_know_neither_onnx_nor_torch(module: str) -> None:
    assert not {name.split(".")[0] for name in imports(module, modules()[module])} & HEAVY


@pytest.mark.parametrize("module", [name for name in modules() if room(name) == "run"])
def test_run_knows_neither_onnx_ir_nor_scipy(module: str) -> None:
    assert not {name.split(".")[0] for name in imports(module, modules()[module])} & {"onnx_ir", "scipy"}


def loaded_by(names: list[str]) -> set[str]:
    """The top-level modules that a fresh interpreter holds after importing `names`."""
    code = (
        f"import sys; {'; '.join(f'import {name}' for name in names)}; print(*(m.split('.')[0] for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_dims_and_plan_load_neither_onnx_nor_torch() -> None:
    assert not loaded_by([name for name in modules() if room(name) in ("dims", "plan")]) & HEAVY


CUTTING = (
    *("name_dims", "choose_plan", "check_plan", "cut_graph", "rewrite", "versions", "gradients", "shared_parts"),
    *("parallel_loss", "local_sizes", "masked_lookup", "gathered_weights", "remove_unused", "check_local", "emit"),
)
"""The passes that serve ONNX and PyTorch graphs alike."""
NEUTRAL = ("program", "local", "names", "dtypes", "samples", "state")
"""What of `graph` does."""


def test_what_serves_every_graph_loads_neither_onnx_nor_torch() -> None:
    names = [f"tpcompile.passes.{name}" for name in CUTTING] + [f"tpcompile.graph.{name}" for name in NEUTRAL]
    assert not loaded_by(names + [name for name in modules() if room(name) == "weights"]) & HEAVY


@pytest.mark.parametrize("module", [name for name in modules() if room(name) != "torch"])
def test_torch_is_imported_in_its_own_room_alone(module: str) -> None:
    assert "torch" not in {name.split(".")[0] for name in imports(module, modules()[module])}


def test_a_rank_of_torch_starts_without_the_compiler() -> None:
    pytest.importorskip("torch", reason="rank programs of torch need torch")
    found = loaded_by(["tpcompile.torch.run"])
    assert "torch" in found and not found & {"onnx", "onnx_ir", "onnx_shape_inference", "scipy"}


def test_a_rank_starts_without_the_compiler() -> None:
    assert not loaded_by(["tpcompile.run.tprun"]) & {"onnx_ir", "onnx_shape_inference", "scipy", "torch"}


@pytest.mark.parametrize("link", ["passes", "recipes"])
def test_passes_and_recipes_are_links(link: str) -> None:
    assert (PACKAGE / link).is_symlink()
    assert (PACKAGE / link).readlink() == Path("..") / link
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "--stage", f"tpcompile/{link}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert listed.stdout.startswith("120000 ")


def test_passes_is_no_package_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", "import passes"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: import tpcompile.passes; the folder passes/ is only its source\n")


def test_files_are_short_or_have_a_reason() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in modules().values()}
    assert {name for name, count in lines.items() if count > 400} == set(LONG)


def test_names_say_what_is_inside() -> None:
    empty = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert not {name for name in modules() if name.rpartition(".")[2] in empty}
