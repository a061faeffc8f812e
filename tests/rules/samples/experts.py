"""Samples of mixtures of experts as single operators: 5 experts of 12 or 48 features inside."""

from tests.rules.sample import Sample

TOKENS = {"b": 2, "t": 3}


def experts(activation: str, given: str, note: str, fusion: int = 0, tokens: str = "6", **claims: str) -> Sample:
    """MoE; `given` are the operands after the weights of fc1: names of those that are there."""
    wide = 24 if fusion else 12
    shapes = {"w": f"5, {wide}, 8", "c": f"5, {wide}", "v": "5, 8, 12", "d": "5, 8", "u": "5, 12, 8", "e": "5, 12"}
    names = [name if name in given else '""' for name in "cvdue"]
    while names[-1] == '""':
        names.pop()
    stored = ", ".join(f"float[{shapes[name]}] {name}" for name in ("w", *given))
    return Sample(
        "com.microsoft.MoE",
        f"(float[{tokens}, 8] x, float[6, 5] r) => (float[] y) <{stored}> {{ y = com.microsoft.MoE<k = 2, "
        f'activation_type = "{activation}", swiglu_fusion = {fusion}, normalize_routing_weights = 1>'
        f"(x, r, w, {', '.join(names)}) }}",
        note=note,
        **claims,
    )


def quantized(
    bits: int, note: str, fusion: int = 0, block: int = 0, given: str = "", activation: str = "silu", **claims: str
) -> Sample:
    """QMoE with a scale per column, or per block of `block` rows; biases "c d", zero points "z y", fc3 "u"."""
    wide, per_byte = 96 if fusion else 48, 8 // bits
    rows = {"w": (wide, 32), "v": (32, 48), "u": (48, 32)}
    stored, names = [], ["x", "r"]
    for name, scale, bias in (("w", "s", "c"), ("v", "t", "d"), ("u", "p", "e")):
        if name == "u" and name not in given:
            names += ['""'] * 3
            continue
        n, k = rows[name]
        stored += [
            f"uint8[5, {n}, {k // per_byte}] {name}",
            f"float[5, {n}{f', {k // block}' if block else ''}] {scale}",
        ]
        stored += [f"float[5, {n}] {bias}"] * (bias in given)
        names += [name, scale, bias if bias in given else '""']
    for zero, name in (("z", "w"), ("q", "v"), ("o", "u")):
        n, k = rows[name]
        if zero in given:
            shape = f"{n}, {-(-k // block // per_byte)}" if block else f"{-(-n // per_byte)}"
            stored.append(f"uint8[5, {shape}] {zero}")
        names.append(zero if zero in given else '""')
    while names[-1] == '""':
        names.pop()
    attributes = f'k = 2, normalize_routing_weights = 1, activation_type = "{activation}", swiglu_fusion = {fusion}'
    attributes += f", expert_weight_bits = {bits}"
    attributes += f", block_size = {block}" * bool(block)
    return Sample(
        "com.microsoft.QMoE",
        f"(float[6, 32] x, float[6, 5] r) => (float[] y) <{', '.join(stored)}> "
        f"{{ y = com.microsoft.QMoE<{attributes}>({', '.join(names)}) }}",
        note=f"{bits} bits {note}",
        values={"s": (0.01, 0.03), "t": (0.01, 0.03), "p": (0.01, 0.03)},
        **claims,
    )


SAMPLES = [
    experts("relu", "v", "plain", free="x[0]", sums="w[1]"),
    experts("gelu", "cvd", "biases", tokens="2, 3", free="x[0] x[1]", sums="w[1]"),
    experts("silu", "vu", "gates apart", free="x[0]", sums="w[1]"),
    experts("silu", "cvdue", "gates apart, biases", free="x[0]", sums="w[1]"),
    experts("swiglu", "cvd", "interleaved", 1, free="x[0]", sums="w[1].0"),
    experts("swiglu", "cvd", "in halves", 2, free="x[0]", sums="w[1].0"),
    quantized(4, "plain", free="x[0]", sums="w[1].0"),
    quantized(8, "biases", given="cd", free="x[0]", sums="w[1]"),
    quantized(4, "interleaved", 1, given="cd", activation="swiglu", free="x[0]", sums="w[1].0"),
    quantized(4, "in halves", 2, given="cd", activation="swiglu", free="x[0]", sums="w[1].0"),
    quantized(4, "in blocks", block=16, given="cd", free="x[0]", sums="w[1].0"),
    quantized(8, "in blocks, interleaved", 1, 16, given="cd", activation="swiglu", free="x[0]", sums="w[1].0"),
    quantized(4, "zero points", given="zq", free="x[0]", sums="w[1].0"),
    quantized(4, "zero points of blocks", block=16, given="zq", free="x[0]", sums="w[1].0"),
    quantized(4, "zero points, interleaved", 1, given="zqcd", activation="swiglu", free="x[0]", sums="w[1].0"),
    quantized(4, "gates apart", given="cdue", free="x[0]", sums="w[1].0"),
]
