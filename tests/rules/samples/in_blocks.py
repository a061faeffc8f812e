"""Samples of operators on weights with a scale per block."""

from tests.rules.sample import Sample

NARROW = {"s": (-0.02, 0.02)}
"""Scales that keep products of whole numbers near 1."""


HEADS = """(float[b, t, {k}] x) => (float[] y, float[] h)
<uint8[6, {count}, {blob}] w, float[6, {count}] s, int64[4] heads = {{0, 0, {heads}}}> {{
    y = com.microsoft.MatMulNBits<K = {k}, N = 6, block_size = {block}>(x, w, s)
    r = Reshape(x, heads)
    h = Softmax(r)
}}"""


def in_blocks(
    k: int, n: int, block: int, bits: int = 4, *, zeros: str = "", more: str = "", flat: bool = False, **claims: str
) -> Sample:
    """MatMulNBits of a [b, t, k] activation; `zeros` is the type of zero points, `more` what else there is."""
    count = -(-k // block)
    shape = f"{n * count}" if flat else f"{n}, {count}"
    weights = [f"uint8[{n}, {count}, {block * bits // 8}] w", f"float[{shape}] s"]
    operands = ["x", "w", "s"]
    if zeros:
        packed = -(-count * bits // 8)
        if zeros == "uint8":
            shape = f"{n * packed}" if flat else f"{n}, {packed}"
        weights.append(f"{zeros}[{shape}] z")
    operands.append("z" if zeros else "")
    if "order" in more:
        weights.append(f"int32[{count * block}] g")
    operands.append("g" if "order" in more else "")
    if "bias" in more:
        weights.append(f"float[{n}] c")
        operands.append("c")
    while not operands[-1]:
        operands.pop()
    spelled = ", ".join(name or '""' for name in operands)
    attributes = f"K = {k}, N = {n}, block_size = {block}, bits = {bits}"
    attributes += ", accuracy_level = 4" * ("int8" in more) + ", weight_prepacked = 1" * ("packed" in more)
    return Sample(
        "com.microsoft.MatMulNBits",
        f"(float[b, t, {k}] x) => (float[] y) <{', '.join(weights)}> "
        f"{{ y = com.microsoft.MatMulNBits<{attributes}>({spelled}) }}",
        note=f"{bits} bits, {k} by {block}{', ' * bool(zeros)}{zeros}{' ' * bool(more)}{more}{' flat' * flat}",
        values=NARROW | {"g": (0, count)},
        sizes={"b": 2, "t": 3},
        **claims,
    )


def looked_up(
    table: str, scales: str, zeros: str = "", ids: str = "b, t", note: str = "", attributes: str = "", **claims: str
) -> Sample:
    """GatherBlockQuantized of a table of 14 rows."""
    third, more = (", z", f", {zeros} z") if zeros else ("", "")
    text = f"(int64[{ids}] i) => (float[] y) <{table} w, float[{scales}] s{more}> "
    return Sample(
        "com.microsoft.GatherBlockQuantized",
        f"{text} {{ y = com.microsoft.GatherBlockQuantized<{attributes}>(w, i, s{third}) }}",
        note=note,
        values={"s": (-0.2, 0.2), "i": (-14, 14)},
        sizes={"b": 2, "t": 3},
        **claims,
    )


SAMPLES = [
    Sample(
        "com.microsoft.MatMulNBits",
        HEADS.format(k=100, count=7, blob=8, heads="5, 20", block=16),
        note="blocks go across heads",
        values=NARROW,
        sizes={"b": 2, "t": 3},
        free="w[0]",
    ),
    Sample(
        "com.microsoft.MatMulNBits",
        HEADS.format(k=128, count=4, blob=16, heads="8, 16", block=32),
        note="two heads a block",
        values=NARROW,
        sizes={"b": 2, "t": 3},
        free="w[0]",
        sums="x[2].0",
    ),
    Sample(
        "com.microsoft.MatMulNBits",
        HEADS.format(k=480, count=15, blob=16, heads="6, 80", block=32),
        note="two heads are five blocks",
        values=NARROW,
        sizes={"b": 2, "t": 3},
        free="w[0]",
        sums="x[2].0 x[2].1",
    ),
    in_blocks(192, 10, 32, free="w[0]", sums="x[2].0"),
    in_blocks(192, 10, 32, more="bias", free="w[0]", sums="x[2].0"),
    in_blocks(192, 10, 16, 8, more="bias int8", free="w[0]", sums="x[2].0"),
    in_blocks(352, 6, 64, free="w[0]", sums="x[2]"),
    in_blocks(352, 6, 64, more="int8", free="w[0]", sums="x[2]"),
    in_blocks(170, 6, 32, flat=True, free="w[0]", sums="x[2]"),
    in_blocks(192, 10, 32, zeros="uint8", free="w[0]", sums="x[2].0"),
    in_blocks(192, 10, 32, zeros="uint8", flat=True, free="w[0]", sums="x[2].0"),
    in_blocks(224, 10, 32, zeros="uint8", more="bias", free="w[0]", sums="x[2].0"),
    in_blocks(352, 6, 64, zeros="uint8", free="w[0]", sums="x[2]"),
    in_blocks(170, 6, 32, zeros="uint8", flat=True, free="w[0]", sums="x[2]"),
    in_blocks(192, 6, 64, 8, zeros="uint8", free="w[0]", sums="x[2].0"),
    in_blocks(170, 10, 32, zeros="float", free="w[0]", sums="x[2]"),
    in_blocks(256, 6, 256, free="w[0]"),
    in_blocks(100, 6, 128, free="w[0]"),
    in_blocks(192, 10, 32, more="order", free="w[0]"),
    in_blocks(192, 10, 32, more="packed"),
    in_blocks(192, 10, 32, 2, free="w[0]", sums="x[2].0"),
    in_blocks(256, 10, 32, 2, zeros="uint8", free="w[0]", sums="x[2].0"),
    looked_up(
        "uint8[14, 96]", "14, 6", note="4 bits in bytes", attributes="block_size = 32", free="w[1].0", sums="w[0]"
    ),
    looked_up(
        "uint8[14, 48]",
        "14, 3",
        "uint8[14, 2]",
        note="zero points in bytes",
        attributes="block_size = 32",
        free="w[1].0",
        sums="w[0]",
    ),
    looked_up(
        "uint8[14, 96]",
        "14, 6",
        "uint8[14, 6]",
        note="8 bits",
        attributes="block_size = 16, bits = 8",
        free="w[1].0",
        sums="w[0]",
    ),
    looked_up(
        "int4[14, 96]", "14, 6", "int4[14, 6]", note="int4", attributes="block_size = 16", free="w[1].0", sums="w[0]"
    ),
    looked_up(
        "uint4[14, 50]",
        "14, 4",
        ids="t",
        note="no whole blocks",
        attributes="block_size = 16",
        free="w[1]",
        sums="w[0]",
    ),
    looked_up(
        "int4[4, 14, 48]",
        "4, 14, 3",
        note="in the middle",
        attributes="gather_axis = 1, quantize_axis = 2, block_size = 16",
        free="w[0] w[2].0",
        sums="w[1]",
    ),
    looked_up(
        "uint4[48, 14]",
        "3, 14",
        note="blocks first",
        attributes="gather_axis = 1, quantize_axis = 0, block_size = 16",
        free="w[0].0",
        sums="w[1]",
    ),
]
