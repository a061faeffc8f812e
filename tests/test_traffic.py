"""What ranks say to each other in one run of an exporter graph: which collectives, of how many bytes.

All graphs have two layers of width 128, of float32: a hidden state is 512 bytes a token. A layer takes two AllReduce of
it, one where attention and FFN stand side by side; the embedding takes one, the logits one AllGather.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest

from tests import zoo
from tpcompile import pipeline
from tpcompile.graph.doors import open_model
from tpcompile.graph.local import CollectiveCall
from tpcompile.graph.read import SourceModel
from tpcompile.plan.request import Request


@dataclass(frozen=True)
class Traffic:
    """One run of a graph.

    Attributes:
        vocabulary: the logits' width; 0 where they are no output of a cut product.
        tokens: how the source spells the number of tokens.
        sums: AllReduce of hidden states.
        more: all else, with its bytes: (operation, bytes) → how many.
    """

    vocabulary: int = 500
    tokens: str = "batch*seq"
    sums: int = 5
    more: tuple[tuple[str, str], ...] = ()


OPTIMUM = "batch_size*sequence_length"
GRAPHS = {
    "albert__dynamo": Traffic(sums=4, more=(("all_reduce", "batch*seq*256"),)),  # its embedding is half as wide
    "bert__dynamo": Traffic(503),
    "bert__legacy-eager": Traffic(503),
    "bloom__optimum": Traffic(tokens=OPTIMUM),
    "distilbert__optimum": Traffic(0, OPTIMUM, more=(("all_reduce", "batch_size*8"),)),  # two classes
    "falcon40b__dynamo__kv": Traffic(503, sums=3),
    "gemma2__legacy__kv": Traffic(),
    "gpt-neox__optimum": Traffic(tokens=OPTIMUM, sums=3),
    "gpt2__legacy__kv": Traffic(503),
    "llama-mha-tied__dynamo": Traffic(503),
    "llama-odd__legacy": Traffic(503),
    "llama__dynamo__kv": Traffic(),
    "llama__hf__kv": Traffic(tokens="s44*s70"),
    "phi3__optimum__kv": Traffic(tokens=OPTIMUM),
    "qwen2__optimum__kv": Traffic(503, OPTIMUM),
    "qwen3__dynamo23__kv": Traffic(),
}


@cache
def source(name: str) -> SourceModel:
    return open_model(zoo.model(name))


@cache
def collectives(name: str, tp: int) -> list[CollectiveCall]:
    work = pipeline.start(source(name), Request(tp))
    return pipeline.run(work, pipeline.PLANNING + pipeline.REWRITING).local.collectives


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("name", GRAPHS)
def test_collectives_and_bytes_of_one_run(name: str, tp: int) -> None:
    said = GRAPHS[name]
    expected = Counter({("all_reduce", f"{said.tokens}*512"): said.sums}) + Counter(said.more)
    if said.vocabulary:  # parts are padded to equal ones
        expected["all_gather", f"{said.tokens}*{4 * tp * -(-said.vocabulary // tp)}"] += 1
    assert Counter((call.op, call.nbytes) for call in collectives(name, tp)) == expected


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", zoo.names())
def test_no_value_is_summed_or_gathered_twice(name: str, tp: int) -> None:
    """Nor summed and then gathered: one collective makes a value what its readers need."""
    times = Counter(call.value.name for call in collectives(name, tp))
    assert {value for value, count in times.items() if count > 1} == set()


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_an_image_takes_two_sums_a_layer_and_one_for_its_patches(tp: int) -> None:
    """ViT: 16 patches, or 17 places with the class; its two classes come out of a product that stays whole."""
    found = Counter((call.op, call.nbytes) for call in collectives("vit__dynamo", tp))
    layers, patches = ("all_reduce", f"batch*{17 * 512}"), ("all_reduce", f"batch*{16 * 512}")
    assert found[layers] == 4 and found[patches] <= 1 and set(found) <= {layers, patches}
