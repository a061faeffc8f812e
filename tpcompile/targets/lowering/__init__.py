"""Rank models in the operators that TensorRT takes: what it does not know is written in others, numbers kept.

The compiler's rank files stay as they are; a lowered model is made for the builder and may be thrown away afterwards.
"""

from tpcompile.targets.lowering import attention as _attention  # noqa: F401 - fills the table
from tpcompile.targets.lowering import attention_grouped as _attention_grouped  # noqa: F401 - fills the table
from tpcompile.targets.lowering import attention_multi_head as _attention_multi_head  # noqa: F401 - fills the table
from tpcompile.targets.lowering import experts as _experts  # noqa: F401 - fills the table
from tpcompile.targets.lowering import gelus as _gelus  # noqa: F401 - fills the table
from tpcompile.targets.lowering import in_blocks as _in_blocks  # noqa: F401 - fills the table
from tpcompile.targets.lowering import norms as _norms  # noqa: F401 - fills the table
from tpcompile.targets.lowering import products as _products  # noqa: F401 - fills the table
from tpcompile.targets.lowering import quantize as _quantize  # noqa: F401 - fills the table
from tpcompile.targets.lowering import quantized_elementwise as _elementwise  # noqa: F401 - fills the table
from tpcompile.targets.lowering import quantized_products as _quantized_products  # noqa: F401 - fills the table
from tpcompile.targets.lowering import rotary as _rotary  # noqa: F401 - fills the table
from tpcompile.targets.lowering import scatters as _scatters  # noqa: F401 - fills the table
from tpcompile.targets.lowering import shapes as _shapes  # noqa: F401 - fills the table
from tpcompile.targets.lowering import signals as _signals  # noqa: F401 - fills the table
from tpcompile.targets.lowering.lower import Lowered, lower

__all__ = ["Lowered", "lower"]
