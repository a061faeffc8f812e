#!/usr/bin/env python3
"""Export a Hugging Face decoder with its caches as inputs and outputs: python export.py MODEL OUT.onnx

MODEL is a folder (or, where there is a network, a name) that AutoModelForCausalLM takes. The graph has the inputs
input_ids, attention_mask, position_ids and past_key_values.N.key/.value, and the outputs logits and
present.N.key/.value; batch, sequence and past are dynamic. Needs torch==2.13.0, onnxscript and transformers.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, DynamicCache


class DecoderStep(torch.nn.Module):
    """One step of a decoder as a function of tensors alone: what ONNX can say."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Ids and positions [batch, seq], mask [batch, past + seq], caches [batch, kv heads, past, head size]."""
        cache = DynamicCache(past)
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return found.logits, [(layer.keys, layer.values) for layer in found.past_key_values.layers]


def export(model: torch.nn.Module, path: str) -> None:
    """Write the decoder to `path`, its weights beside it where they are large."""
    config = model.config
    layers = config.num_hidden_layers
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    batch, seq, past = 2, 3, 5  # any sizes, all different and none of them 1: equal sizes would be taken for one
    dtype = next(model.parameters()).dtype
    example = (
        torch.ones(batch, seq, dtype=torch.int64),
        torch.ones(batch, past + seq, dtype=torch.int64),
        torch.arange(past, past + seq).expand(batch, seq),
        # a tensor of its own for each cache: the exporter takes one object given twice for one input
        [tuple(torch.zeros(batch, heads, past, size, dtype=dtype) for _ in "kv") for _ in range(layers)],
    )
    tokens, mask, cache = {0: "batch", 1: "seq"}, {0: "batch", 1: "total_seq"}, {0: "batch", 2: "past"}
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    torch.onnx.export(
        DecoderStep(model).eval(),
        example,
        path,
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in names)],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=(tokens, mask, tokens, [(cache, cache)] * layers),
        dynamo=True,
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    export(AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval(), sys.argv[2])
