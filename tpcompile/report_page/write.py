"""report.html as a file: into a bundle, or where `tpcompile plan --report` wants it."""

from __future__ import annotations

import secrets
from pathlib import Path

from tpcompile.errors import refuse
from tpcompile.plan.summary import PlanSummary
from tpcompile.report_page.page import report_page

SUFFIX = ".html"


def check_report(path: Path, degrees: int) -> None:
    """Refuse, before anything is planned, a place where no page may be written.

    Raises:
        Refused: TP440 it is no name of a page, or its folder is not there; TP441 a page shows one degree.
    """
    where = f"--report {path}"
    if degrees > 1:
        raise refuse("TP441", where, "a report shows one plan, and --tp asks for several", "Give one degree")
    if path.suffix.lower() != SUFFIX:
        raise refuse("TP440", where, "a report is a page, and replaces what has its name", f"Use a name in {SUFFIX}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        fact = "it is a folder" if path.is_dir() else "there is no such folder"
        raise refuse("TP440", where, fact, "Choose a file in a folder that is there")


def write_report(plan: PlanSummary, path: Path) -> None:
    """Write the page, in place of one that is there: as a whole or not at all.

    Raises:
        Refused: TP440 the system does not let it.
    """
    content = report_page(plan).encode()
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        made.write_bytes(content)
        made.replace(path)
    except OSError as error:
        fact = f"cannot write it: {error.strerror}"
        raise refuse("TP440", f"--report {path}", fact, "Choose another place") from error
    finally:
        made.unlink(missing_ok=True)
