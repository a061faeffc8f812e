"""The models of tools/bench_torch, and how each peer cuts them over two processes.

Every peer starts from the same saved checkpoint and gives a `Subject`: how to run a forward step, how to get the loss,
and the whole gradient of each parameter by its name in the checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental._tp_transform import tensor_parallel_transformation
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tpcompile.torch import groups
from tpcompile.torch.programs import parallelize

BATCH, SEQUENCE, VOCABULARY, RANKS = 4, 128, 8000, 2
LONGEST = 512  # positions that the models have, and the largest of a dynamic size

Tensors = dict[str, torch.Tensor]


class StackConfig(transformers.PreTrainedConfig):
    """Sizes of a Stack."""

    model_type = "stack"
    num_hidden_layers = 4


class Result(NamedTuple):
    """What a transformers model returns, as far as it is used here."""

    logits: torch.Tensor
    loss: torch.Tensor | None


class Stack(transformers.PreTrainedModel):
    """Pairs of Linear on two axes, without attention: what graph transformations of torch are tested with.

    forward(input_ids (tokens), labels (tokens) or nothing) gives logits (tokens, 8000) and the mean loss.
    """

    config_class = StackConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding = torch.nn.Embedding(VOCABULARY, 512)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({"up": torch.nn.Linear(512, 2048), "down": torch.nn.Linear(2048, 512)})
            for _ in range(config.num_hidden_layers)
        )
        self.head = torch.nn.Linear(512, VOCABULARY)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Result:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + layer["down"](torch.nn.functional.gelu(layer["up"](x)))
        logits = self.head(x)
        return Result(logits, None if labels is None else torch.nn.functional.cross_entropy(logits, labels))


@dataclass(frozen=True)
class Case:
    """A model: its classes, its sizes, and Megatron's layout by hand, as names of modules.

    In each layer under `layers`, `columns` are cut along their outputs and `rows` along their inputs; `embedding` is
    cut along the vocabulary, and `head` along its outputs, which are the logits. `shape` is that of the ids.
    """

    config: type
    model: type
    sizes: dict[str, Any]
    layers: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    embedding: str
    head: str
    shape: tuple[int, ...] = (BATCH, SEQUENCE)

    def make(self) -> Any:
        """The model with seeded weights of mixed sign; no bias is zero and no norm is one."""
        settings = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **self.sizes}
        model = self.model(self.config(**settings))
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in model.parameters():
                width = max(parameter.shape[1:]) if parameter.dim() > 1 else 4
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(width))
        return model

    def load(self, folder: Path, **arguments: Any) -> Any:
        return self.model.from_pretrained(folder, **arguments)

    def names(self, modules: tuple[str, ...]) -> list[str]:
        count = next(self.sizes[key] for key in ("num_hidden_layers", "n_layer") if key in self.sizes)
        return [f"{self.layers}.{layer}.{module}" for layer in range(count) for module in modules]

    def told(self) -> str:
        """The class and the sizes, in a sentence."""
        sizes = ", ".join(f"{name} {value}" for name, value in self.sizes.items() if value != 0.0)
        return f"`{self.model.__name__}`: {sizes}; ids {list(self.shape)}."

    def batch(self) -> Tensors:
        """Ids and labels; every eighth label is not counted."""
        ids = torch.randint(3, VOCABULARY, self.shape, generator=torch.Generator().manual_seed(5))
        return {"input_ids": ids, "labels": torch.where(torch.arange(self.shape[-1]) % 8 == 7, -100, ids)}


LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
CASES = {
    "llama": Case(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        LLAMA,
        "model.layers",
        (*ATTENTION, "mlp.gate_proj", "mlp.up_proj"),
        ("self_attn.o_proj", "mlp.down_proj"),
        "model.embed_tokens",
        "lm_head",
    ),
    "bert": Case(
        transformers.BertConfig,
        transformers.BertForMaskedLM,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        "bert.encoder.layer",
        ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"),
        ("attention.output.dense", "output.dense"),
        "bert.embeddings.word_embeddings",
        "cls.predictions.decoder",
    ),
    "gpt2": Case(
        transformers.GPT2Config,
        transformers.GPT2LMHeadModel,
        {
            "vocab_size": VOCABULARY,
            "n_positions": LONGEST,
            "n_embd": 512,
            "n_layer": 4,
            "n_head": 8,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        "transformer.h",
        ("attn.c_attn", "mlp.c_fc"),
        ("attn.c_proj", "mlp.c_proj"),
        "transformer.wte",
        "lm_head",
    ),
    "mixtral": Case(
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {
            **LLAMA,
            "intermediate_size": 704,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "experts_implementation": "grouped_mm",
        },
        "model.layers",
        ATTENTION,
        ("self_attn.o_proj",),
        "model.embed_tokens",
        "lm_head",
    ),
    "stack": Case(
        StackConfig,
        Stack,
        {"num_hidden_layers": 4},
        "layers",
        ("up",),
        ("down",),
        "embedding",
        "head",
        (BATCH * SEQUENCE,),
    ),
}


@dataclass
class Subject:
    """One model as a peer runs it.

    `logits` gives whole logits (4, 128, 8000) without gradients; `loss` the mean loss; `parameters` are what an
    optimizer gets; `gradients` the whole gradients of the checkpoint's parameters after backward, on every rank.
    `around` is entered for forward and backward of a training step.
    """

    logits: Callable[[], torch.Tensor]
    loss: Callable[[], torch.Tensor]
    parameters: list[torch.nn.Parameter]
    gradients: Callable[[], Tensors]
    around: Callable[[], contextlib.AbstractContextManager[Any]] = field(default=contextlib.nullcontext)


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def of_module(case: Case, model: Any, **options: Any) -> Subject:
    """A subject of a module that is called as the case's own is; its parameters may be DTensors."""
    batch = case.batch()

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return whole(model(input_ids=batch["input_ids"]).logits)

    def gradients() -> Tensors:
        return {name: whole(one.grad) for name, one in model.named_parameters() if one.grad is not None}

    return Subject(logits, lambda: model(**batch).loss, list(model.parameters()), gradients, **options)


def one_device(case: Case, folder: Path, training: bool) -> Subject:
    return of_module(case, case.load(folder).train(training))


def hugging_face(case: Case, folder: Path, training: bool) -> Subject:
    """`from_pretrained` with the plan that transformers has for the model."""
    return of_module(case, case.load(folder, tp_plan="auto").train(training))


def shared_parameters(model: Any) -> list[list[tuple[str, str]]]:
    """The places, module and attribute, of each parameter that has several."""
    places: dict[int, list[tuple[str, str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        module, _, attribute = name.rpartition(".")
        places.setdefault(id(parameter), []).append((module, attribute))
    return [group for group in places.values() if len(group) > 1]


def dtensor(case: Case, folder: Path, training: bool) -> Subject:
    """`parallelize_module` with Megatron's layout; in training logits stay cut and `loss_parallel` takes the loss."""
    model = case.load(folder)
    shared = shared_parameters(model)
    plan: dict[str, Any] = {name: ColwiseParallel() for name in case.names(case.columns)}
    plan |= {name: RowwiseParallel() for name in case.names(case.rows)}
    plan[case.embedding] = RowwiseParallel(input_layouts=Replicate())
    layout, local = (Shard(-1), False) if training else (Replicate(), True)
    plan[case.head] = ColwiseParallel(output_layouts=layout, use_local_output=local)
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)
    for names in shared:  # each style makes a parameter of its own: what was one weight would be trained as two
        places = [(model.get_submodule(module), attribute) for module, attribute in names]
        cut = next(getattr(*place) for place in places if isinstance(getattr(*place), DTensor))
        for place in places:
            setattr(*place, cut)
    return of_module(case, model.train(training), around=loss_parallel if training else contextlib.nullcontext)


class Step(torch.nn.Module):
    """What is exported: ids to logits, or ids and labels to the loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        result = self.model(input_ids=input_ids, labels=labels)
        return result.logits if labels is None else result.loss


def joined(part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The whole of a tensor of this shape, of which each rank has an equal run along one axis; or the tensor itself."""
    if part.shape == shape:
        return part
    parts = [torch.empty_like(part) for _ in range(RANKS)]
    dist.all_gather(parts, part.contiguous())
    axis = next(axis for axis, size in enumerate(part.shape) if size != shape[axis])
    return torch.cat(parts, axis)


def of_step(case: Case, program: Any, whole_of: Callable[[str, torch.Tensor], torch.Tensor]) -> Subject:
    """A subject of a graph made of a Step, whose parameters have "model." before their names.

    `whole_of` makes a parameter's whole gradient of the ranks' own, by the parameter's name.
    """
    batch = case.batch()

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return program(input_ids=batch["input_ids"])

    def gradients() -> Tensors:
        found = {name: one.grad for name, one in program.named_parameters() if one.grad is not None}
        return {name.removeprefix("model."): whole_of(name, grad) for name, grad in found.items()}

    return Subject(logits, lambda: program(**batch), list(program.parameters()), gradients)


def transformation(case: Case, folder: Path, training: bool) -> Subject:
    """`tensor_parallel_transformation` of the decomposed export, with Megatron's layout of the linear layers.

    It is helped over three things that have nothing to do with cutting: eager attention, since the decomposed graph of
    another cannot always be traced; buffers that are not saved, which it misses; checks without a result.
    """
    options = {} if case.model is Stack else {"attn_implementation": "eager"}
    step = Step(case.load(folder, **options)).train(training)
    example = {name: tensor for name, tensor in case.batch().items() if training or name == "input_ids"}
    with contextlib.nullcontext() if training else torch.no_grad():
        program = torch.export.export(step, (), example, strict=False).run_decompositions()
    program.state_dict.update(program.constants)
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)
    styles: dict[str, Any] = {f"model.{name}": ColwiseParallel for name in case.names(case.columns)}
    styles |= {f"model.{name}": RowwiseParallel for name in case.names(case.rows)}
    cut = tensor_parallel_transformation(program, dist.get_rank(), RANKS, "cpu", styles).module()
    shapes = {name: tensor.shape for name, tensor in step.named_parameters()}
    return of_step(case, cut, lambda name, part: joined(part, shapes[name]))


def tpcompile_ranks(case: Case, folder: Path, training: bool) -> Subject:
    """`tpcompile.torch.parallelize` of the exported Step with dynamic sizes, without a word about the layout."""
    step = Step(case.load(folder)).train(training)
    example = {name: tensor for name, tensor in case.batch().items() if training or name == "input_ids"}
    axes = {
        axis: torch.export.Dim(name, max=LONGEST) for axis, name in enumerate(("batch", "sequence")[-len(case.shape) :])
    }
    cut = parallelize(step, example, dynamic=dict.fromkeys(example, axes), tp=RANKS)
    program = cut.rank_program(dist.get_rank())
    groups.use(RANKS, groups.labels_of(program))
    parts = {weight.name: weight.parts for weight in cut.work.local.weights}
    shapes = {name: tensor.shape for name, tensor in step.named_parameters()}

    def whole_of(name: str, part: torch.Tensor) -> torch.Tensor:
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, part)
        found = torch.full(shapes[name], float("nan"))
        for rank, held in enumerate(parts[name]):
            rows = [torch.arange(size) if ranges is None else torch.cat([torch.arange(*one) for one in ranges])
                    for size, ranges in zip(shapes[name], held.axes, strict=True)]  # fmt: skip
            found[torch.meshgrid(*rows, indexing="ij")] = every[rank]
        return found

    return of_step(case, program.module(check_guards=False), whole_of)


PEERS: dict[str, Callable[[Case, Path, bool], Subject]] = {
    "one": one_device,
    "tpcompile": tpcompile_ranks,
    "hf": hugging_face,
    "dtensor": dtensor,
    "transformation": transformation,
}
