"""Samples of operators on quantised numbers."""

from tests.rules.sample import Sample


def scaled(op: str, x: str, s: str, z: str = "", y: str = "float", attributes: str = "", **claims: str) -> Sample:
    """QuantizeLinear or DequantizeLinear."""
    third, more = (", z", f", {z} z") if z else ("", "")
    text = f"({x} x) => ({y}[] y) <{s} s{more}>"
    if op == "DequantizeLinear" and " b" not in x and "[b" not in x:
        text = f"(float[2] unused) => ({y}[] y) <{x} x, {s} s{more}>"
    return Sample(
        op,
        f"{text} {{ y = {op}<{attributes}>(x, s{third}) }}".replace("<>", ""),
        note=f"{x} by {s} {z} {attributes}",
        values={"s": (0.01, 0.1)},
        **claims,
    )


SCALES = dict.fromkeys("pqr", (0.01, 0.1))


def product(op: str, x: str, w: str, z: str = "", o: str = "", **claims: str) -> Sample:
    """A product of whole numbers, with zero points of x and w."""
    stored = "".join(f", {kind} {name}" for kind, name in ((z, "z"), (o, "o")) if kind)
    given = ", z" * bool(z) + ", o" * bool(o)
    return Sample(
        op, f"({x} x) => (int32[] y) <{w} w{stored}> {{ y = {op}(x, w{given}) }}", note=f"{x} {z} {o}", **claims
    )


SAMPLES = [
    *(
        scaled(f"com.microsoft.{op}", f"{x}[b, 6, 10]", s, z, y, attributes, free="x[1] x[2]")
        for op, types in (("QuantizeLinear", ("float", "{}")), ("DequantizeLinear", ("{}", "float")))
        for narrow, length, attributes in (
            ("int16", "", ""),
            ("uint16", "[10]", "axis = 2"),
            ("uint8", "[6]", "axis = 1"),
        )
        for x, y in [[each.format(narrow) for each in types]]
        for s, z in ((f"float{length}", f"{narrow}{length}"),)
    ),
    scaled("DequantizeLinear", "int8[b, 6, 10]", "float", "int8", free="x[1] x[2]"),
    scaled("DequantizeLinear", "uint8[b, 6, 10]", "float[6]", "uint8[6]", free="x[1] x[2]"),
    scaled("DequantizeLinear", "uint8[b, 6, 10]", "float[10]", attributes="axis = -1", free="x[1] x[2]"),
    scaled("DequantizeLinear", "int32[b, 6, 10]", "float[6]", free="x[1] x[2]"),
    scaled("DequantizeLinear", "int8[10, 12]", "float[10]", attributes="axis = 0", free="x[0] x[1]"),
    scaled("DequantizeLinear", "int4[10, 12]", "float[10]", "int4[10]", attributes="axis = 0", free="x[0] x[1]"),
    scaled("DequantizeLinear", "uint4[9, 7]", "float[7]", "uint4[7]", attributes="axis = 1", free="x[0] x[1]"),
    scaled(
        "DequantizeLinear", "int4[96, 10]", "float[6, 10]", attributes="axis = 0, block_size = 16", free="x[0].0 x[1]"
    ),
    scaled(
        "DequantizeLinear",
        "uint4[10, 96]",
        "float[10, 6]",
        "uint4[10, 6]",
        attributes="axis = 1, block_size = 16",
        free="x[0] x[1].0",
    ),
    scaled(
        "DequantizeLinear",
        "int8[12, 50]",
        "float[12, 4]",
        "int8[12, 4]",
        attributes="axis = 1, block_size = 16",
        free="x[0] x[1]",
    ),
    scaled(
        "DequantizeLinear",
        "uint4[7, 75]",
        "float[7, 5]",
        "uint4[7, 5]",
        attributes="axis = 1, block_size = 16",
        free="x[0] x[1]",
    ),
    scaled("DequantizeLinear", "float8e4m3fn[12, 10]", "float[12]", attributes="axis = 0", free="x[0] x[1]"),
    scaled("QuantizeLinear", "float[b, 6, 10]", "float", "uint8", "uint8", free="x[1] x[2]"),
    scaled("QuantizeLinear", "float[b, 6, 10]", "float[10]", "int8[10]", "int8", "axis = 2", free="x[1] x[2]"),
    scaled(
        "QuantizeLinear",
        "float[2, 6, 48]",
        "float[2, 6, 3]",
        "",
        "uint8",
        "axis = 2, block_size = 16",
        free="x[0] x[1] x[2].0",
    ),
    Sample(
        "DequantizeLinear",
        """(float[b, 96] x) => (float[] y) <float4e2m1[96, 12] w, float8e4m3fn[6, 12] s, float g> {
            t = DequantizeLinear(s, g)
            v = DequantizeLinear<axis = 0, block_size = 16>(w, t)
            y = MatMul(x, v)
        }""",
        note="scales that are quantised themselves",
        values={"g": (0.01, 0.1)},
        free="s[0] s[1]",
    ),
    Sample(
        "QuantizeLinear",
        """(float[2, 6, 48] x) => (float[] y) <float[2, 6, 3] s, uint4[2, 6, 3] z> {
            q = QuantizeLinear<axis = 2, block_size = 16>(x, s, z)
            y = DequantizeLinear<axis = 2, block_size = 16>(q, s, z)
        }""",
        note="to 4 bits in blocks",
        values={"s": (0.1, 0.3)},
        free="x[0] x[1] x[2].0",
    ),
    Sample(
        "QuantizeLinear",
        """(float[b, 7, 9] x) => (float[] y) <float[7] s, int4[7] z> {
            q = QuantizeLinear<axis = 1>(x, s, z)
            y = DequantizeLinear<axis = 1>(q, s, z)
        }""",
        note="to 4 bits by channel",
        values={"s": (0.1, 0.3)},
        free="x[1] x[2]",
    ),
    Sample(
        "QuantizeLinear",
        """(float[b, 6, 10] x) => (float[] y) <float s, float8e4m3fn z> {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }""",
        note="to float8",
        values={"s": (0.1, 0.3), "z": (0, 0)},
        free="x[1] x[2]",
    ),
    Sample(
        "DynamicQuantizeLinear",
        "(float[b, 6, 10] x) => (uint8[] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
        free="x[1] x[2]",
    ),
    Sample(
        "DynamicQuantizeLinear",
        "(float[b, 6, 10] x) => (uint8[] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
        values={"x": (2, 3)},
        free="x[1] x[2]",
        note="all positive",
    ),
    Sample(
        "DynamicQuantizeLinear",
        "(float[6, 10] x) => (uint8[] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
        values={"x": (-3, -2)},
        free="x[0] x[1]",
        opset=11,
        note="all negative",
    ),
    product("MatMulInteger", "uint8[b, s, 6]", "int8[6, 10]", free="w[1]", sums="x[2]"),
    product("MatMulInteger", "uint8[b, 4, s, 6]", "uint8[4, 6, 10]", "uint8", "uint8", free="x[1] w[2]", sums="x[3]"),
    product("MatMulInteger", "int8[9, 6]", "int8[6, 10]", "int8", "int8[10]", free="x[0] w[1]", sums="x[1]"),
    Sample(
        "com.microsoft.MatMulIntegerToFloat",
        """(uint8[b, s, 6] x) => (float[] y) <int8[6, 10] w, float p, float[10] q, uint8 z, int8[10] o, float[10] c>
        { y = com.microsoft.MatMulIntegerToFloat(x, w, p, q, z, o, c) }""",
        values=SCALES,
        free="w[1]",
        sums="x[2]",
    ),
    Sample(
        "com.microsoft.MatMulIntegerToFloat",
        """(uint8[9, 6] x) => (float[] y) <uint8[6, 10] w, float p, float q>
        { y = com.microsoft.MatMulIntegerToFloat(x, w, p, q) }""",
        values=SCALES,
        free="x[0] w[1]",
        sums="x[1]",
        note="one scale",
    ),
    Sample(
        "com.microsoft.DynamicQuantizeMatMul",
        """(float[b, s, 6] x) => (float[] y) <int8[6, 10] w, float[10] q, int8[10] o, float[10] c>
        { y = com.microsoft.DynamicQuantizeMatMul(x, w, q, o, c) }""",
        values=SCALES,
        free="w[1]",
    ),
    Sample(
        "com.microsoft.DynamicQuantizeMatMul",
        """(float[9, 6] x) => (float[] y) <uint8[6, 10] w, float q>
        { y = com.microsoft.DynamicQuantizeMatMul(x, w, q) }""",
        values=SCALES,
        free="w[1]",
        note="one scale",
    ),
    Sample(
        "QLinearMatMul",
        """(uint8[b, s, 6] x) => (uint8[] y)
        <float p, uint8 z, int8[6, 10] w, float[10] q, int8[10] o, float r, uint8 n>
        { y = QLinearMatMul(x, p, z, w, q, o, r, n) }""",
        values=SCALES,
        free="w[1]",
    ),
    Sample(
        "com.microsoft.QGemm",
        """(uint8[9, 6] x) => (float[] y) <float p, uint8 z, int8[10, 6] w, float[10] q, int8[10] o, int32[10] c>
        { y = com.microsoft.QGemm<transB = 1>(x, p, z, w, q, o, c) }""",
        values=SCALES | {"c": (-90, 90)},
        free="x[0] w[0]",
        sums="x[1]",
    ),
    Sample(
        "com.microsoft.QGemm",
        """(uint8[9, 6] x) => (uint8[] y) <float p, uint8 z, uint8[6, 10] w, float q, uint8 o, float r, uint8 n>
        { y = com.microsoft.QGemm(x, p, z, w, q, o, , r, n) }""".replace("o, ,", 'o, "",'),
        values=SCALES,
        free="x[0] w[1]",
        note="rounded",
    ),
    Sample(
        "com.microsoft.QAttention",
        """(uint8[b, s, 12] x) => (float[] y)
        <int8[12, 72] w, float[72] c, float p, float q, uint8 z, int8 o>
        { y = com.microsoft.QAttention<num_heads = 4>(x, w, c, p, q, "", z, o) }""",
        values=dict.fromkeys("pq", (0.001, 0.01)),
        free="w[1].0",
    ),
    Sample(
        "com.microsoft.QAttention",
        """(uint8[b, s, 12] x, int32[b] m, float[2, b, 6, t, 4] past) => (float[] y, float[] present)
        <int8[12, 72] w, float[72] c, float p, float[72] q, uint8 z, int8[72] o>
        { y, present = com.microsoft.QAttention<num_heads = 6, unidirectional = 1>(x, w, c, p, q, m, z, o, past) }""",
        values=dict.fromkeys("pq", (0.001, 0.01)) | {"m": (3, 8)},
        sizes={"b": 2, "s": 3, "t": 5},
        free="w[1].0",
        note="past, by column",
    ),
    Sample(
        "ConvInteger",
        """(uint8[b, 6, 9, 7] x) => (int32[] y) <uint8[10, 6, 3, 3] w, uint8 z, uint8 o>
        { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z, o) }""",
        free="w[0]",
        sums="x[1]",
    ),
    Sample(
        "ConvInteger",
        "(uint8[b, 6, 9] x) => (int32[] y) <uint8[6, 1, 3] w> { y = ConvInteger<group = 6>(x, w) }",
        free="x[1]",
        note="depthwise",
    ),
    Sample(
        "QLinearConv",
        """(uint8[b, 6, 9, 7] x) => (uint8[] y)
        <float p, uint8 z, int8[10, 6, 3, 3] w, float[10] q, int8[10] o, float r, uint8 n, int32[10] c>
        { y = QLinearConv<pads = [1, 1, 1, 1]>(x, p, z, w, q, o, r, n, c) }""",
        values=SCALES | {"c": (-90, 90), "o": (0, 1)},
        free="w[0]",
    ),
    Sample(
        "QLinearConv",
        """(uint8[b, 6, 9] x) => (uint8[] y) <float p, uint8 z, uint8[6, 1, 3] w, float q, uint8 o, float r, uint8 n>
        { y = QLinearConv<group = 6>(x, p, z, w, q, o, r, n) }""",
        values=SCALES,
        free="x[1]",
        note="depthwise",
    ),
    *[
        Sample(
            f"com.microsoft.{op}",
            f"""(uint8[b, 6, 10] x, uint8[{other}] w) => (uint8[] y)
            <float p, uint8 z, float q, uint8 o, float r, uint8 n>
            {{ y = com.microsoft.{op}(x, p, z, w, q, o, r, n) }}""",
            values=SCALES,
            free="x[1] x[2]",
            note=other,
        )
        for op in ("QLinearAdd", "QLinearMul")
        for other in ("b, 6, 10", "6, 1", "10")
    ],
    *[
        Sample(
            f"com.microsoft.{op}",
            f"(uint8[b, 6, 10] x) => (uint8[] y) <float p, uint8 z, float r, uint8 n> "
            f"{{ y = com.microsoft.{op}{more}(x, p, z, r, n) }}",
            values=SCALES,
            free=free,
        )
        for op, more, free in (
            ("QLinearSigmoid", "", "x[1] x[2]"),
            ("QLinearLeakyRelu", "<alpha = 0.1>", "x[1] x[2]"),
            ("QLinearSoftmax", "<axis = -1, opset = 13>", "x[1]"),
        )
    ],
    Sample(
        "com.microsoft.QLinearSoftmax",
        """(uint8[b, 6, 10] x) => (uint8[] y) <float p, uint8 z, float r, uint8 n>
        { y = com.microsoft.QLinearSoftmax<axis = 1, opset = 11>(x, p, z, r, n) }""",
        values=SCALES,
        note="old",
    ),
    Sample(
        "com.microsoft.QLinearGlobalAveragePool",
        """(uint8[b, 6, 5, 4] x) => (uint8[] y) <float p, uint8 z, float r, uint8 n>
        { y = com.microsoft.QLinearGlobalAveragePool(x, p, z, r, n) }""",
        values=SCALES,
        free="x[1]",
    ),
    Sample(
        "com.microsoft.QLinearGlobalAveragePool",
        """(uint8[b, 5, 4, 6] x) => (uint8[] y) <float p, uint8 z, float r, uint8 n>
        { y = com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(x, p, z, r, n) }""",
        values=SCALES,
        free="x[3]",
        note="channels last",
    ),
    Sample(
        "com.microsoft.QLinearConcat",
        """(uint8[b, 6, 10] x, uint8[b, 4, 10] w) => (uint8[] y) <float r, uint8 n, float p, uint8 z, float q, uint8 o>
        { y = com.microsoft.QLinearConcat<axis = 1>(r, n, x, p, z, w, q, o) }""",
        values=SCALES,
        free="x[1] w[1] x[2]",
    ),
]
