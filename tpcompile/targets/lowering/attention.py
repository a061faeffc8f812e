"""Attention of all kinds, in the operators TensorRT fuses by itself."""

from __future__ import annotations

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site


@lowering("", "Attention")
def attention(site: Site) -> list[str]:
    """Stays itself, allowed to be taken apart where no kernel of TensorRT fits: without this a build fails."""
    if site.attribute("TRT_decomposable"):
        raise NotLowered("it may be taken apart already")
    attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
    outputs = site.emit_several("Attention", list(site.node.input), len(site.node.output),
                                **attributes, TRT_decomposable=1)  # fmt: skip
    return outputs
