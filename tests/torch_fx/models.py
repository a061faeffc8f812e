"""Small transformers models of random weights, captured by torch.export with dynamic batch and sequence.

Every parameter is drawn from a seeded normal distribution: no bias is zero, no norm is one. Two layers each; widths,
heads and vocabularies are unequal, so that no two dimensions can be mistaken for each other. 8 or 12 heads, 4 key and
value heads and feed-forward widths that 4 divides, except in `llama-odd`, where a cut is uneven.

    exported("llama")                    the ExportedProgram, captured once per process
    inputs("llama", batch=3, seq=5)      keyword inputs of the module and of its exported program
    training_step("llama")               a module in training mode: ids and labels in, loss out
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch graphs need torch")
transformers: Any = pytest.importorskip("transformers", reason="the model families come from transformers")

Inputs = dict[str, Any]
Shapes = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One model family.

    `make` gives the module in evaluation mode; `example` gives keyword inputs for (batch, seq, past); `axes` gives per
    input the name of each dynamic axis. `layers` counts the transformer layers (of T5, BART and Whisper: encoder and
    decoder layers together).
    """

    name: str
    make: Callable[[], Any]
    example: Callable[[int, int, int], Inputs]
    axes: dict[str, Any]
    layers: int = 2

    def build(self) -> tuple[Any, tuple[()], Inputs, Shapes]:
        """The module in evaluation mode, its inputs at batch 2, sequence 7, past 5, and the dynamic shapes."""
        return self.make(), (), self.example(2, 7, 5), dynamic(self.axes)


def dynamic(axes: dict[str, Any]) -> Shapes:
    """torch.export's dynamic shapes; axes of one name are one Dim, except "past + seq", which export derives."""
    # A Dim cannot be the sum of two others. Export finds the sum itself and holds it by a guard; as it takes every
    # dynamic size for 2 or more, it also refuses sums below 4 (a past of 0 with 4 tokens and a step of 1 are fine).
    dims = {name: torch.export.Dim(name, max=64) for name in ("batch", "seq", "past", "source")}
    dims["past + seq"] = torch.export.Dim.DYNAMIC

    def shapes(of: Any) -> Any:
        if isinstance(of, list):
            return [shapes(one) for one in of]
        return {axis: dims[name] for axis, name in of.items()}

    return {name: shapes(named) for name, named in axes.items()}


def randomised(module: Any, seed: int = 7) -> Any:
    """The module in evaluation mode, every parameter drawn anew, scaled so that activations stay near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            width = max(parameter.shape[1:]) if parameter.dim() > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.2 / math.sqrt(width))
    return module.eval()


def tokens(batch: int, seq: int, vocabulary: int = 500) -> Any:
    return torch.randint(5, vocabulary, (batch, seq), generator=torch.Generator().manual_seed(100 * batch + seq))


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def padding(batch: int, seq: int) -> Any:
    """Ones, and zeros where the right end of every second row is padding."""
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[1::2, seq - seq // 3 :] = 0
    return mask


def text(batch: int, seq: int, past: int) -> Inputs:
    return {"input_ids": tokens(batch, seq)}


def masked_text(batch: int, seq: int, past: int) -> Inputs:
    return {"input_ids": tokens(batch, seq), "attention_mask": padding(batch, seq)}


def two_texts(batch: int, seq: int, past: int) -> Inputs:
    """A source that is three tokens longer than the target."""
    return {**masked_text(batch, seq + 3, past), "decoder_input_ids": tokens(batch, seq)}


def picture(batch: int, seq: int, past: int) -> Inputs:
    return {"pixel_values": normal(batch, 3, 12, 20)}


def sound(batch: int, seq: int, past: int) -> Inputs:
    return {"input_features": normal(batch, 20, 48), "decoder_input_ids": tokens(batch, seq)}


def cached_text(heads: int, width: int) -> Callable[[int, int, int], Inputs]:
    """Inputs of WithCache for two layers of this many key and value heads, the left end of every second row padding."""

    def example(batch: int, seq: int, past: int) -> Inputs:
        mask = padding(batch, past + seq).flip(1)
        mask[:, past:] = 1
        caches = [normal(4, batch, heads, past, width)[index] for index in range(4)]
        return {"input_ids": tokens(batch, seq), "attention_mask": mask, "past": caches}

    return example


TEXT = {"input_ids": {0: "batch", 1: "seq"}}
MASKED_TEXT = {**TEXT, "attention_mask": {0: "batch", 1: "seq"}}
TWO_TEXTS = {
    "input_ids": {0: "batch", 1: "source"},
    "attention_mask": {0: "batch", 1: "source"},
    "decoder_input_ids": {0: "batch", 1: "seq"},
}
PICTURE = {"pixel_values": {0: "batch"}}  # positions are learned for one size of picture
SOUND = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "seq"}}  # Whisper takes one length alone
CACHED_TEXT = {**TEXT, "attention_mask": {0: "batch", 1: "past + seq"}, "past": [{0: "batch", 2: "past"}] * 4}


def of(model: str, *, attention: str = "sdpa", config: str | None = None, **sizes: Any) -> Callable[[], Any]:
    """Builds transformers' class `model` from its configuration class with these sizes."""

    def make() -> Any:
        settings = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **sizes}
        kind = getattr(transformers, config or model.split("For")[0] + "Config")
        return randomised(getattr(transformers, model)(kind(**settings, attn_implementation=attention)))

    return make


LLAMA = {
    "vocab_size": 508,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
"""Sizes of the LLaMA kin. The projections of attention are 64 × 96, not square."""

ODD = {
    **LLAMA,
    "vocab_size": 505,
    "hidden_size": 66,
    "intermediate_size": 170,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
}
GPT2 = {"vocab_size": 508, "n_positions": 64, "n_embd": 96, "n_head": 12, "n_layer": 2, "n_inner": 200}


class WithCache(torch.nn.Module):  # type: ignore[misc]
    """A decoder whose caches are flat tensors: each layer's past key and value in, the longer ones out.

    forward(input_ids (batch, seq), attention_mask (batch, past + seq), past_0, past_1, …), where past_2i and past_2i+1
    are layer i's key and value (batch, heads, past, head width), gives logits and the present keys and values.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, past: list[Any]) -> tuple[Any, ...]:
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        out = self.model(input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return (out.logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values)))


def with_cache(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: WithCache(make()).eval()


NARROW = {"hidden_size": 96, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 508}
TWO_STACKS = {
    "vocab_size": 508,
    "d_model": 96,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 200,
    "decoder_ffn_dim": 172,
    "decoder_start_token_id": 1,
}
SIZES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "bert": {**NARROW, "intermediate_size": 200, "max_position_embeddings": 64},
    "gpt-neox": {**NARROW, "intermediate_size": 200, "rotary_pct": 0.5, "max_position_embeddings": 64},
    "falcon": {**NARROW, "new_decoder_architecture": True, "num_kv_heads": 4, "bias": True, "ffn_hidden_size": 200},
    "falcon-mqa": {**NARROW, "new_decoder_architecture": False, "multi_query": True, "ffn_hidden_size": 200},
    "gemma2": {**LLAMA, "sliding_window": 4, "query_pre_attn_scalar": 12, "tie_word_embeddings": True},
    "bloom": {"vocab_size": 508, "hidden_size": 96, "n_head": 8, "n_layer": 2},
    "mixtral": {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    "t5": {
        "vocab_size": 508,
        "d_model": 64,
        "d_kv": 12,
        "d_ff": 172,
        "num_layers": 2,
        "num_heads": 8,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    },
    "vit": {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "intermediate_size": 200,
        "image_size": (12, 20),
        "patch_size": 4,
        "num_labels": 20,
    },
    "whisper": {**TWO_STACKS, "max_target_positions": 64, "max_source_positions": 24, "num_mel_bins": 20},
}
GPT2_MODEL = of("GPT2LMHeadModel", config="GPT2Config", **GPT2)
T5_MODEL = of("T5ForConditionalGeneration", config="T5Config", **SIZES["t5"])
# Gemma 2 caps its scores and BLOOM adds to them per head: only their eager attention computes that on a CPU.
GEMMA2_MODEL = of("Gemma2ForCausalLM", attention="eager", **SIZES["gemma2"])
BLOOM_MODEL = of("BloomForCausalLM", attention="eager", **SIZES["bloom"])


def mixtral(experts: str) -> Callable[[], Any]:
    """The default way of running experts loops over those that a batch happens to use; such a loop has no graph."""
    return of("MixtralForCausalLM", experts_implementation=experts, **SIZES["mixtral"])


ALL = [
    Family("llama", of("LlamaForCausalLM", **LLAMA), text, TEXT),
    Family("llama-tied", of("LlamaForCausalLM", **{**LLAMA, "tie_word_embeddings": True}), masked_text, MASKED_TEXT),
    Family("llama-odd", of("LlamaForCausalLM", **ODD), text, TEXT),
    Family("llama-kv", with_cache(of("LlamaForCausalLM", **LLAMA)), cached_text(4, 12), CACHED_TEXT),
    Family("qwen2", of("Qwen2ForCausalLM", **LLAMA), masked_text, MASKED_TEXT),
    Family("qwen3", of("Qwen3ForCausalLM", **LLAMA), text, TEXT),
    Family("gemma2", GEMMA2_MODEL, masked_text, MASKED_TEXT),
    Family("gpt2", GPT2_MODEL, masked_text, MASKED_TEXT),
    Family("gpt2-kv", with_cache(GPT2_MODEL), cached_text(12, 8), CACHED_TEXT),
    Family("gpt-neox", of("GPTNeoXForCausalLM", **SIZES["gpt-neox"]), text, TEXT),
    Family("falcon", of("FalconForCausalLM", **SIZES["falcon"]), masked_text, MASKED_TEXT),
    Family("falcon-mqa", of("FalconForCausalLM", **SIZES["falcon-mqa"]), text, TEXT),
    Family("phi3", of("Phi3ForCausalLM", **LLAMA), text, TEXT),
    Family("bloom", BLOOM_MODEL, masked_text, MASKED_TEXT),
    Family("bert", of("BertForMaskedLM", **SIZES["bert"]), masked_text, MASKED_TEXT),
    Family("mixtral", mixtral("batched_mm"), text, TEXT),
    Family("mixtral-grouped", mixtral("grouped_mm"), masked_text, MASKED_TEXT),
    Family("t5", T5_MODEL, two_texts, TWO_TEXTS, layers=4),
    Family("bart", of("BartForConditionalGeneration", **TWO_STACKS), two_texts, TWO_TEXTS, layers=4),
    Family("whisper", of("WhisperForConditionalGeneration", **SIZES["whisper"]), sound, SOUND, layers=4),
    Family("vit", of("ViTForImageClassification", **SIZES["vit"]), picture, PICTURE),
]
FAMILIES = {family.name: family for family in ALL}


def inputs(name: str, batch: int = 3, seq: int = 11, past: int = 4) -> Inputs:
    """Keyword inputs of a family's module at these sizes; the values follow from the sizes alone."""
    return FAMILIES[name].example(batch, seq, past)


@functools.cache
def module(name: str) -> Any:
    """The family's module in evaluation mode, made once per process: not to be changed."""
    return FAMILIES[name].make()


@functools.cache
def exported(name: str) -> Any:
    """The family's ExportedProgram, in evaluation mode, captured once per process: not to be changed."""
    family = FAMILIES[name]
    example = family.example(2, 7, 5)
    return torch.export.export(module(name), (), example, dynamic_shapes=dynamic(family.axes), strict=False)


class Loss(torch.nn.Module):  # type: ignore[misc]
    """forward(input_ids (batch, seq), labels (batch, seq), −100 where not counted) gives the model's mean loss ()."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, labels: Any) -> Any:
        return self.model(input_ids=input_ids, labels=labels).loss


TRAINED: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama": ("LlamaForCausalLM", ("attention_dropout",)),
    "llama-tied": ("LlamaForCausalLM", ("attention_dropout",)),
    "gpt2": ("GPT2LMHeadModel", ("resid_pdrop", "embd_pdrop", "attn_pdrop")),
    "bert": ("BertForMaskedLM", ("hidden_dropout_prob", "attention_probs_dropout_prob")),
}
"""The families that are trained: transformers' class, and what its configuration calls dropout probabilities."""


def training_step(name: str, dropout: float = 0.0) -> Any:
    """A new module in training mode that gives the loss; every dropout has this probability."""
    model, probabilities = TRAINED[name]
    sizes = {**SIZES[name.removesuffix("-tied")], **dict.fromkeys(probabilities, dropout)}
    if name == "llama-tied":
        sizes["tie_word_embeddings"] = True
    return Loss(of(model, config="GPT2Config" if name == "gpt2" else None, **sizes)()).train()
