"""An annotated model as a file beside the model it came from: its weights stay where they are."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tpcompile.annotations.write import Annotated
from tpcompile.errors import refuse
from tpcompile.graph.read import SourceModel
from tpcompile.weights.source import FileBytes

OTHER_NAME = "Choose another name"


def check_annotate(out: Path, source: SourceModel, force: bool) -> None:
    """Refuse what `save` could not write.

    Raises:
        Refused: TP160 where the file would lie apart from the weights that it names, would replace a file of the
            source, names weights that are in memory only, or is there already and `force` is not given.
    """
    where, beside = f"--annotate {out}", sorted({p.path for p in source.places.values() if isinstance(p, FileBytes)})
    if any(not isinstance(place, FileBytes) for place in source.places.values()):
        fact = "the model's weights are in memory, and the annotated file would name them"
        raise refuse("TP160", where, fact, "Save the model with its weights first, and give its path")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise refuse("TP160", where, "there is no such folder", "Make it, or choose another")
    if beside and source.folder is not None and not folder.samefile(source.folder):
        fact = f"it would name weights that lie beside the model ({beside[0].name}), and lie elsewhere itself"
        raise refuse("TP160", where, fact, f"Write it beside the model: --annotate {source.folder / out.name}")
    if out.exists():
        own = [*beside, *([source.folder / source.file] if source.folder is not None else [])]
        if any(path.exists() and out.samefile(path) for path in own):
            raise refuse("TP160", where, "it is a file of the model itself", OTHER_NAME)
        if not force:
            raise refuse("TP160", where, "it is there already", "Remove it, or choose another name")


def save(annotated: Annotated, out: Path) -> None:
    """Write the model; the file appears as a whole or not at all.

    Raises:
        Refused: TP160 where it has 2 GiB or more, or cannot be written.
    """
    where = f"--annotate {out}"
    if annotated.model.ByteSize() >= 2**31:
        fact = "it would have 2 GiB or more: the model keeps its weights inside its file"
        raise refuse("TP160", where, fact, "Save the model with external data first")
    part = out.with_name(f".{out.name}.tmp-{secrets.token_hex(4)}")
    try:
        part.write_bytes(annotated.model.SerializeToString(deterministic=True))
        os.replace(part, out)
    except OSError as error:
        raise refuse("TP160", where, error.strerror or str(error), "Choose another place") from None
    finally:
        part.unlink(missing_ok=True)
