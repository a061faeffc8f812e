"""Files that `tpcompile plan` writes on request, each as a whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from tpcompile.errors import Fault, raise_all, refuse

CODE = "TP440"
SEVERAL = "TP441"


def check_places(wanted: dict[str, Path | None], degrees: int) -> None:
    """Refuse, before anything is planned, places where nothing may be written; `wanted` by option.

    Raises:
        Refused: TP440 a name of another kind than the option's, or a folder that is not there; TP441 a file holds one
            plan, and several degrees are asked for; all of them at once.
    """
    faults = []
    for option, path in wanted.items():
        if path is None:
            continue
        where, suffix = f"{option} {path}", SUFFIXES[option]
        if degrees > 1:
            faults.append(Fault(SEVERAL, where, "it holds one plan, and --tp asks for several", "Give one degree"))
        elif path.suffix.lower() != suffix:
            fact = f"it replaces a file that has its name, and must end in {suffix}"
            faults.append(Fault(CODE, where, fact, f"Use a name in {suffix}"))
        elif path.is_dir() or not path.absolute().parent.is_dir():
            fact = "it is a folder" if path.is_dir() else "there is no such folder"
            faults.append(Fault(CODE, where, fact, "Choose a file in a folder that is there"))
    raise_all(faults)


SUFFIXES = {"--report": ".html", "--write-plan": ".toml", "--export-tp-plan": ".json"}
"""Options that name a file to write, and how the name ends."""


def write_whole(option: str, path: Path, text: str) -> None:
    """Write a file, in place of one that is there.

    Raises:
        Refused: TP440 the system does not let it.
    """
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        made.write_bytes(text.encode())
        made.replace(path)
    except OSError as error:
        raise refuse(
            CODE, f"{option} {path}", f"cannot be written ({error.strerror})", "Choose another place"
        ) from None
    finally:
        made.unlink(missing_ok=True)
