"""What is done to a graph: one verb per file, in the order in which `tpcompile.pipeline` runs them."""

if __name__ != "tpcompile.passes":
    raise ImportError("import tpcompile.passes; the folder passes/ is only its source")
