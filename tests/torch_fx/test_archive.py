"""`.pt2` archives: read in place and without unpickling, written so that torch knows them, refused where they lie."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="archives of torch need torch")

from tests.torch_fx import archives  # noqa: E402 - it imports torch
from tests.torch_fx.archives import WEIGHTS, in_json, in_text, saved, tampered  # noqa: E402
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.torch.archive import read_archive, require_all, write_archive  # noqa: E402
from tpcompile.torch.expressions import is_expression  # noqa: E402
from tpcompile.torch.tensors import fill, held_by, mapped  # noqa: E402
from tpcompile.weights.source import FileBytes  # noqa: E402

AGAIN = "Save it again with torch.export.save, or copy the file again"
SAVED_BY = "Give a .pt2 file that torch.export.save wrote"
TWICE = "Save it again with torch.export.save of this torch, or copy the file again"
NOT_OURS = "torch writes no such thing: take the file from its source again, and do not trust this copy"


@pytest.fixture(scope="module")
def program() -> Any:
    return archives.exported()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, program: Any) -> Path:
    return saved(tmp_path_factory.mktemp("archive") / "model.pt2", program)


def refusal(path: Path, **options: Any) -> str:
    """The text of the refusal, the place of the file left out."""
    with pytest.raises(Refused) as caught:
        read_archive(path, **options)
    return str(caught.value).replace(str(path), "FILE")


def results(program: Any, batch: int = 4, length: int = 8) -> list[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(program.module()(*archives.inputs(batch, length)))
    return list(leaves)


def same(found: list[Any], wanted: list[Any]) -> None:
    """Equal but for the order of sums: what was stored transposed comes back row-major."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_a_program_comes_back_with_its_numbers(archive: Path, program: Any) -> None:
    read, stored = read_archive(archive)
    assert {tensor.device.type for tensor in (*read.state_dict.values(), *read.constants.values())} == {"meta"}
    assert held_by(read) == held_by(program) == tuple(stored)
    assert str(read.graph) == str(program.graph) and str(read.call_spec) == str(program.call_spec)
    assert str(read.range_constraints) == str(program.range_constraints)
    fill(read, mapped(stored))
    same(results(read), results(program))
    for name, tensor in (*program.state_dict.items(), *program.constants.items()):
        found = (read.state_dict | read.constants)[name]
        torch.testing.assert_close(found, tensor.contiguous(), rtol=0, atol=0)
        assert found.requires_grad == tensor.requires_grad and type(found) is type(tensor)


def test_tensors_are_found_where_they_lie(archive: Path) -> None:
    """In the archive itself, tied ones in one place, slices of one storage each at their own."""
    stored = read_archive(archive)[1]
    content = archive.read_bytes()
    for name in ("embed.weight", "up.bias", "first", "last", "short", "scale", "steps", "constant"):
        source = stored[name].source
        assert isinstance(source, FileBytes) and source.path == archive
        wanted = (archives.Model().state_dict() | vars(archives.Model()) | archives.Model()._buffers)[name]
        got = torch.frombuffer(bytearray(content[source.offset : source.offset + source.nbytes]), dtype=wanted.dtype)
        assert torch.equal(got.view(wanted.shape), wanted.detach()), name
        assert (stored[name].dtype, stored[name].shape) == (str(wanted.dtype)[6:], tuple(wanted.shape))
    assert stored["head.weight"].source == stored["embed.weight"].source
    first, last = stored["first"].source, stored["last"].source
    assert isinstance(first, FileBytes) and isinstance(last, FileBytes) and last.offset == first.offset + 40


def test_tied_weights_stay_one_parameter(archive: Path) -> None:
    read, stored = read_archive(archive)
    fill(read, mapped(stored))
    module = read.module()
    assert module.head.weight is module.embed.weight


def test_changes_stay_in_the_process(archive: Path) -> None:
    before = archive.read_bytes()
    mapped(read_archive(archive)[1])["scale"].zero_()
    assert archive.read_bytes() == before


def test_without_tensors_it_is_an_archive_of_torch(archive: Path, program: Any, tmp_path: Path) -> None:
    """Written again and read again it is the same program; torch reads its parts and misses the weights."""
    path = tmp_path / "rank0.pt2"
    write_archive(program, path)
    assert torch.export.pt2_archive.is_pt2_package(str(path))
    assert "models/model.json" in torch.export.pt2_archive.PT2ArchiveReader(str(path)).get_file_names()
    with pytest.raises(Exception, match=r"Parameter turned is not in the state dict"):
        torch.export.load(path)
    read, stored = read_archive(path)
    assert stored == {} and str(read.graph) == str(program.graph)
    fill(read, mapped(read_archive(archive)[1]))
    same(results(read), results(program))
    with pytest.raises(Refused) as caught:
        require_all(read, stored, path)
    assert str(caught.value) == (
        f"TP738 {path}: does not hold the bytes of turned, first, last and 8 more. "
        "Put them beside it, in rank0.safetensors"
    )


def test_weights_beside_the_archive(program: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.pt2"
    write_archive(program, path)
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in
               (*program.state_dict.items(), *program.constants.items())}  # fmt: skip
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    read, stored = read_archive(path)
    assert stored.keys() == tensors.keys()
    fill(read, mapped(stored))
    same(results(read), results(program))
    other = tmp_path / "other.safetensors"
    safetensors.save_file({**tensors, "up.weight": torch.zeros(10, 5), "short": torch.zeros(10)}, other)
    assert refusal(path, weights=other) == (
        "TP738 FILE, short: is stored as float32[10], and the graph reads it as bfloat16[10]. "
        "Graph and weights are of two exports: save them together\n"
        "TP738 FILE, up.weight: is stored as float32[10, 5], and the graph reads it as float32[10, 6]. "
        "Graph and weights are of two exports: save them together"
    )
    other.write_bytes(other.read_bytes()[:-1])
    with pytest.raises(Refused) as caught:
        read_archive(path, weights=other)
    assert str(caught.value) == (
        f"TP738 {other}: is no whole safetensors file: the bytes of tensor 'constant' are not all there. "
        "Copy the file again, or save it again"
    )


def test_what_was_exported_on_a_gpu_is_read_without_one(archive: Path) -> None:
    path = tampered(archive, in_text('"type": "cpu", "index": null', '"type": "cuda", "index": 0'))
    read, _ = read_archive(path)
    assert {node.meta["val"].device.type for node in read.graph.nodes if node.op == "placeholder"} == {"cuda"}


def test_outputs_of_transformers(tmp_path: Path) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return outputs.BaseModelOutput(last_hidden_state=x * 2, attentions=(x, x + 1))

    program = torch.export.export(Wrapped(), (torch.randn(3, 5),), strict=False)
    found = read_archive(saved(tmp_path / "model.pt2", program))[0].module()(torch.ones(3, 5))
    assert type(found) is outputs.BaseModelOutput and torch.equal(found.attentions[1], torch.full((3, 5), 2.0))


def test_an_expanded_parameter_is_refused(tmp_path: Path) -> None:
    class Expanded(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.randn(1, 5).expand(400, 5))

        def forward(self, x: Any) -> Any:
            return x + self.mask

    program = torch.export.export(Expanded(), (torch.randn(400, 5),), strict=False)
    assert refusal(saved(tmp_path / "model.pt2", program)) == (
        "TP733 FILE, mask: is an expanded view of 20 bytes. Call contiguous() on it before the export"
    )


class Canary:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(archive: Path, tmp_path: Path) -> None:
    """Sample inputs that would run code are not read; weights and constants that are pickled are refused."""
    canary = tmp_path / "unpickled"
    evil = pickle.dumps(Canary(canary))
    path = tampered(archive, lambda members: members.update({"data/sample_inputs/model.pt": evil}))
    read_archive(path)
    remedy = "Make it an ordinary tensor before the export (a quantized one: dequantize it, or use packed ints)"

    def pickled(content: Any) -> None:
        content["config"]["scale"]["use_pickle"] = True

    path = tampered(archive, in_json(pickled, WEIGHTS))
    assert refusal(path) == (f"TP734 FILE, scale: is a tensor of a class of its own, which is stored pickled. {remedy}")

    def an_object(content: Any) -> None:
        content["config"]["constant"] |= {"use_pickle": True, "tensor_meta": None, "path_name": "custom_obj_0"}

    path = tampered(archive, in_json(an_object, "data/constants/model_constants_config.json"))
    assert refusal(path) == f"TP734 FILE, constant: is an object, not a tensor, which is stored pickled. {remedy}"
    path = tampered(archive, lambda members: members.update({"data/weights/model.pt": evil}))
    assert refusal(path) == (
        "TP734 FILE, data/weights/model.pt: these tensors are pickled, by an old torch. "
        "Save the exported program with torch.export.save of torch 2.13"
    )
    assert not canary.exists()


def set_target(target: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        content["graph_module"]["graph"]["nodes"][2]["target"] = target

    return change


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("torch.hub.load", "calls 'torch.hub.load', which is no operator. "
                           "Export a model whose forward computes with torch's operators"),
        ("_operator.attrgetter", "calls '_operator.attrgetter', which is no operator. "
                                 "Export a model whose forward computes with torch's operators"),
        ("torch.ops.aten.linear.__class__", "calls the operator aten::linear.__class__, which torch "
         f"{torch.__version__} does not have. "
         "Import what defines it first, or export the model again with this torch"),
        ("torch.ops.aten.save.default", f"calls the operator aten::save, which opens files. {NOT_OURS}"),
        ("torch.ops.aten.from_file.default", f"calls the operator aten::from_file, which opens files. {NOT_OURS}"),
        ("torch.ops.mine.relu.default", "calls the operator mine::relu, which is neither torch's own nor ours. "
         "Import what defines it and read the file with namespaces=['mine'], or export without it"),
        ("#bundled:relu", "calls '#bundled:relu', which is no operator. "
                          "Export a model whose forward computes with torch's operators"),
    ],
)  # fmt: skip
def test_operators_that_may_not_stand_in_a_graph(archive: Path, target: str, text: str) -> None:
    path = tampered(archive, in_json(set_target(target)))
    assert refusal(path) == f"TP735 FILE, node tanh: {text}"


def test_operators_of_libraries_that_are_named(archive: Path) -> None:
    library = torch.library.Library("tests_archive", "DEF")
    library.define("bend(Tensor self) -> Tensor")
    path = tampered(archive, in_json(set_target("torch.ops.tests_archive.bend.default")))
    assert refusal(path).startswith("TP735 FILE, node tanh: calls the operator tests_archive::bend, which is neither")
    read, _ = read_archive(path, namespaces=["tests_archive"])
    assert "tests_archive.bend" in str(read.graph)


def spoil_name(content: Any) -> None:
    graph = content["graph_module"]["graph"]
    evil = "x):\n  import os; os.abort()\ndef g("
    graph["inputs"][0]["as_tensor"]["name"] = evil
    graph["tensor_values"][evil] = graph["tensor_values"]["p_embed_weight"]


def spoil_argument(content: Any) -> None:
    content["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"][0] = "ids=print()"


def spoil_path(content: Any) -> None:
    content["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] = 'a"+print()+"'


def spoil_expression(content: Any) -> None:
    sizes = content["graph_module"]["graph"]["tensor_values"]["ids"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = "__import__('os').abort()"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (spoil_name, r"a name is 'x):\n  import os; os.abort()\ndef g('"),
        (spoil_argument, "a name is 'ids=print()'"),
        (spoil_path, "a tensor's name is 'a\"+print()+\"'"),
        (spoil_expression, "a size is \"__import__('os').abort()\""),
    ],
)
def test_texts_that_would_be_run(archive: Path, change: Callable[[Any], None], what: str) -> None:
    path = tampered(archive, in_json(change))
    assert refusal(path) == f"TP736 FILE: {what}, which would be run as code. {NOT_OURS}"


def test_guards_are_not_taken_over(archive: Path) -> None:
    def change(content: Any) -> None:
        content["guards_code"] = ["__import__('os').abort()"]

    assert read_archive(tampered(archive, in_json(change)))[0]._guards_code == []


def tree(kind: str, context: str) -> Callable[[Any], None]:
    """An edit that puts the logits into a container of its own."""

    def change(content: Any) -> None:
        call = content["graph_module"]["module_call_graph"][0]["signature"]
        protocol, root = json.loads(call["out_spec"])
        leaf = {"type": None, "context": None, "children_spec": []}
        root["children_spec"][0] = {"type": kind, "context": context, "children_spec": [leaf]}
        call["out_spec"] = json.dumps([protocol, root])

    return change


@pytest.mark.parametrize(
    ("kind", "context", "text"),
    [
        ("builtins.dict", '[{"__enum__": true, "fqn": "this:d", "name": "x"}]',
         "TP736 FILE: a builtins.dict of its inputs or outputs has the settings "
         '[{"__enum__": true, "fqn": "this:d", "name": "x"}], which could be run as code. '
         "Export a module that takes and gives tensors in tuples and dicts"),
        ("collections.defaultdict", '{"default_factory_module": "this", "default_factory_name": "d"}',
         "TP737 FILE: its inputs or outputs are in a collections.defaultdict, which is not registered with "
         "torch.utils._pytree here. "
         "Import what registers it first, or export a module that takes and gives tensors in tuples and dicts"),
        ("this.Output", "[]",
         "TP737 FILE: its inputs or outputs are in a this.Output, which is not registered with "
         "torch.utils._pytree here. "
         "Import what registers it first, or export a module that takes and gives tensors in tuples and dicts"),
    ],
)  # fmt: skip
def test_containers_import_nothing(archive: Path, kind: str, context: str, text: str) -> None:
    assert refusal(tampered(archive, in_json(tree(kind, context)))) == text
    assert "this" not in sys.modules


def test_a_tree_that_is_none(archive: Path) -> None:
    def change(content: Any) -> None:
        content["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = "[2, null]"

    assert refusal(tampered(archive, in_json(change))) == (
        f"TP733 FILE: the containers of its inputs or outputs are '[2, null]', which is no tree. {AGAIN}"
    )


def test_a_registered_container_is_taken(archive: Path) -> None:
    path = tampered(archive, in_json(tree("collections.OrderedDict", '["inner"]')))
    assert list(read_archive(path)[0].call_spec.out_spec.unflatten([1, 2, 3])["logits"]) == ["inner"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda content: content["schema_version"].update(major=7),
         f"TP733 FILE: its graph has version 7, and torch {torch.__version__} reads version 8. "
         "Export the model again with this torch, or install the torch that wrote it"),
        (lambda content: content["verifiers"].append("EDGE"),
         "TP733 FILE: its graph is of the dialect TRAINING, EDGE. "
         "Export it with torch.export.export, without a backend's own passes"),
        (lambda content: content.pop("opset_version"),
         f"TP733 FILE, models/model.json: the graph lacks the key opset_version. {TWICE}"),
        (lambda content: content["graph_module"]["graph"]["tensor_values"]["ids"].update(dtype="5"),
         "TP733 FILE, models/model.json: graph_module.graph.tensor_values.ids.dtype should be one of ScalarType, "
         f"found '5'. {TWICE}"),
        (lambda content: content["graph_module"]["graph"]["inputs"][0].update(as_int=3),
         "TP733 FILE, models/model.json: graph_module.graph.inputs[0] should be one of "),
        (lambda content: content["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"]["as_tensor"].update(name=4),
         "TP733 FILE, models/model.json: graph_module.graph.nodes[0].inputs[0].arg.as_tensor.name should be a text, "
         f"found 4. {TWICE}"),
        (lambda content: content["graph_module"]["graph"]["tensor_values"].pop("b_scale"),
         f"TP733 scale: the graph does not say what its input b_scale is. {TWICE[:30]}"),
        (lambda content: content["graph_module"]["graph"]["nodes"].pop(0),
         "TP739 FILE: torch cannot make a program of its graph: "),
    ],
    ids=range(8),
)  # fmt: skip
def test_graphs_of_another_form(archive: Path, change: Callable[[Any], None], text: str) -> None:
    found = refusal(tampered(archive, in_json(change)))
    assert found == text or (not text.endswith("again") and found.startswith(text.rstrip()))


def drop(member: str) -> archives.Edit:
    return lambda members: members.__delitem__(member)


def put(member: str, content: bytes) -> archives.Edit:
    return lambda members: members.update({member: content})


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (drop("models/model.json"), "TP731 FILE: holds no exported program. "
                                    "Save the program itself, with torch.export.save"),
        (put("models/other.json", b"{}"), "TP731 FILE: holds several programs: model, other. "
                                          "Save the one that is to be compiled in a file of its own"),
        (drop("archive_version"), f"TP733 FILE: lacks its member archive_version. {AGAIN}"),
        (put("archive_version", b"1"), "TP733 FILE: its archive_version is '1', and '0' can be read. "
                                       "Save it with torch 2.13 on an ordinary machine"),
        (put("byteorder", b"big"), "TP733 FILE: its byteorder is 'big', and 'little' can be read. "
                                   "Save it with torch 2.13 on an ordinary machine"),
        (drop(WEIGHTS), f"TP733 FILE: lacks its member {WEIGHTS}. {AGAIN}"),
        (put("models/model.json", b"{"), "TP733 FILE, models/model.json: is no JSON (JSONDecodeError: Expecting "
         f"property name enclosed in double quotes: line 1 column 2 (char 1)). {AGAIN}"),
        (drop("archive_format"), "TP731 FILE: is a zip, but no archive of torch.export. "
         "Save the exported program with torch.export.save of torch 2.13"),
        (put("../../evil", b""), "TP732 FILE: has a member 'model/../../evil', which leads out of the archive. "
         "torch writes no such archive: take it from its source again, and do not trust this copy"),
        (put("a\\b", b""), r"TP732 FILE: has a member 'model/a\\b', which leads out of the archive. "
         "torch writes no such archive: take it from its source again, and do not trust this copy"),
    ],
    ids=range(10),
)  # fmt: skip
def test_archives_that_lack_something(archive: Path, edit: archives.Edit, text: str) -> None:
    assert refusal(tampered(archive, edit)) == text


def test_weights_that_are_not_what_is_said(archive: Path) -> None:
    def swap(content: Any) -> None:
        meta = content["config"]["up.weight"]["tensor_meta"]
        meta["sizes"], meta["strides"] = meta["sizes"][::-1], [{"as_int": 10}, {"as_int": 1}]

    assert refusal(tampered(archive, in_json(swap, WEIGHTS))) == (
        "TP738 FILE, up.weight: is stored as float32[6, 10], and the graph reads it as float32[10, 6]. "
        "Graph and weights are of two exports: save them together"
    )

    def stretch(content: Any) -> None:
        content["config"]["up.weight"]["tensor_meta"]["strides"] = [{"as_int": 7}, {"as_int": 1}]

    assert refusal(tampered(archive, in_json(stretch, WEIGHTS))) == (
        f"TP733 FILE, up.weight: has 240 bytes, too few for float32[10, 6] at its place in them. {AGAIN}"
    )

    def move(content: Any) -> None:
        content["config"]["up.weight"]["path_name"] = "weight_77"

    assert refusal(tampered(archive, in_json(move, WEIGHTS))) == (
        f"TP733 FILE, up.weight: its member data/weights/weight_77 is not there. {AGAIN}"
    )


def test_zips_that_lie(archive: Path, tmp_path: Path) -> None:
    path = tampered(archive, lambda _: None, compression=zipfile.ZIP_DEFLATED)
    assert refusal(path) == (
        f"TP732 FILE: member 'model/data/weights/weight_0' is compressed, and weights are read in place. {AGAIN}"
    )
    content = tampered(archive, lambda _: None).read_bytes()
    path = tmp_path / "copy.pt2"
    path.write_bytes(content[: len(content) // 2])
    assert refusal(path) == f"TP732 FILE: the zip is damaged or breaks off (File is not a zip file). {AGAIN}"
    at = content.rindex(b"PK\x01\x02")  # the directory's last entry: its sizes stand 20 and 24 bytes behind
    path.write_bytes(content[: at + 20] + (10**9).to_bytes(4, "little") * 2 + content[at + 28 :])
    name = content[at + 46 :].split(b"PK", 1)[0].decode()
    assert refusal(path) == (
        f"TP732 FILE: member {name!r} is said to have 1,000,000,000 bytes, which are not all there. {AGAIN}"
    )
    first = int.from_bytes(content[-6:-2], "little")  # where the directory begins
    size = int.from_bytes(content[first + 24 : first + 28], "little") + 100
    path.write_bytes(content[: first + 20] + size.to_bytes(4, "little") * 2 + content[first + 28 :])
    assert refusal(path) == (
        "TP732 FILE: members 'model/data/weights/weight_0' and 'model/data/weights/weight_1' share bytes. "
        "torch writes no such archive: take it from its source again, and do not trust this copy"
    )
    path.write_bytes(content[:26] + b"\x05" + content[27:])  # another length of the name in the local header
    assert refusal(path) == (
        f"TP732 FILE: member 'model/data/weights/weight_0' is not where the directory says. {AGAIN}"
    )
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as twice:
        twice.writestr("a/b", "1")
        twice.writestr("a/b", "2")
    assert refusal(path) == (
        "TP732 FILE: holds 'a/b' twice. "
        "torch writes no such archive: take it from its source again, and do not trust this copy"
    )


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    assert refusal(path) == f"TP731 FILE: there is no such file. {SAVED_BY}"
    assert refusal(tmp_path).endswith(f": cannot be read: Is a directory. {SAVED_BY}")
    path.write_bytes(b"no zip at all")
    assert refusal(path) == f"TP731 FILE: is no zip, and so no .pt2 archive. {SAVED_BY}"
    torch.save({"weight": torch.ones(3)}, path)
    assert refusal(path) == (
        "TP731 FILE: is a pickled file of torch.save or torch.jit.save. "
        "Save the exported program with torch.export.save of torch 2.13"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.json", "{}")
    assert refusal(path) == (
        f"TP731 FILE: is a zip, but no archive of torch: its members have no common folder. {SAVED_BY}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s58', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))",
        "Max(1, FloorDiv(Symbol('s0', integer=True), Integer(2)))",
        "Pow(Symbol('s53', positive=True, integer=True), Integer(2))",
        "LessThan(Symbol('u0', integer=True), Integer(4))",
        "Float('0.5', precision=53)",
        "Mul(Rational(1, 2), Symbol('s1', integer=True))",
        "true",
    ],
)
def test_sizes_that_torch_writes(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol('s0').__class__",
        "Symbol('__import__(\"os\")')",
        "Symbol(Symbol('s0'))",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "open('x')",
        "Integer('print()')",
        "Symbol('s0', cls=print)",
        "Symbol('s0', **{})",
        "Max(*[1])",
        "Pow(Integer(10), Integer(1000000000))",
        "Pow(Integer(10), Symbol('s0'))",
        "1" * 40,
        "Max()",
        "",
        "(" * 3000 + ")" * 3000,
        "Add(1," * 20_000 + "1" + ")" * 20_000,
        "s0",
    ],
)
def test_sizes_that_it_does_not(text: str) -> None:
    assert not is_expression(text)
