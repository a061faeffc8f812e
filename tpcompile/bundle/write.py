"""A bundle appears as a whole or not at all: it is made in a temporary folder beside its place, then renamed.

An interrupted or failed compile leaves nothing. One that is killed outright leaves its temporary folder, hidden as
`.NAME.tmp-…`; the next compile to the same place removes it. Whether its maker still lives is told by a lock on the
folder, which ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tpcompile.bundle.manifest import FILE_NAME
from tpcompile.errors import refuse
from tpcompile.weights.stage import no_space


class BundleFolder:
    """`with BundleFolder(target, force) as folder:` gives an empty folder that becomes `target` if nothing is raised.

    `marker` is the file by which a folder is known as one that may be replaced.

    Attributes:
        keep_failed: set it to have the folder kept as `NAME.failed` when an error (not an interrupt) ends the block.
        kept: where it was kept, or None.

    Raises:
        Refused: on entry, what `check_target` refuses; TP415 when the system will not make or rename the folder.
    """

    def __init__(self, target: Path, force: bool, marker: str = FILE_NAME) -> None:
        self.target = absolute(target)
        self.force, self.marker = force, marker
        self.keep_failed = False
        self.kept: Path | None = None

    def __enter__(self) -> Path:
        with told(self.target):
            remove_abandoned(self.target)
        check_target(self.target, self.force, self.marker)
        with told(self.target):
            self._folder, self._lock = make_locked(self.target)
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with told(self.target):
                    self._publish()
            elif self.keep_failed and isinstance(error, Exception):
                self._keep()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)

    def _publish(self) -> None:
        """Make everything durable, then put the folder in its place, the old one out of the way first."""
        check_target(self.target, self.force, self.marker)
        for path in [*self._folder.rglob("*"), self._folder]:
            sync(path)
        if not os.path.lexists(self.target):
            self._folder.rename(self.target)
        else:
            with locked(self.target):
                old = beside(self.target, "old")
                self.target.rename(old)
                try:
                    self._folder.rename(self.target)
                except BaseException:
                    old.rename(self.target)
                    raise
                shutil.rmtree(old, ignore_errors=True)
        sync(self.target.parent)

    def _keep(self) -> None:
        """Move the folder to NAME.failed, in the place of an earlier one; where that cannot be, it is removed."""
        place = self.target.with_name(self.target.name + ".failed")
        if os.path.lexists(place) and not is_replaceable(place, self.marker):
            return
        shutil.rmtree(place, ignore_errors=True)
        try:
            self._folder.rename(place)
        except OSError:
            return  # the error that ended the block is the one to tell
        self.kept = place


def check_target(target: Path, force: bool, marker: str = FILE_NAME) -> None:
    """Refuse a place where no bundle may be written, nor another folder that `marker` tells.

    Raises:
        Refused: TP411 something is there and `force` is not set, TP412 what is there is no bundle, TP413 the parent
            is no folder, TP414 the parent cannot be written.
    """
    target = absolute(target)
    with told(target):
        parent = target.parent
        if not parent.is_dir():
            fact = "is a file, not a folder" if parent.exists() else "there is no such folder"
            raise refuse(
                "TP413", str(parent), fact, f"Make the folder first, or choose another place for {target.name!r}"
            )
        if os.path.lexists(target):
            if not is_replaceable(target, marker):
                plain = target.is_dir() and not target.is_symlink()
                kind = f"a folder without {marker}" if plain else "a file or a link"
                remedy = f"Only an empty folder or one with {marker} is ever replaced: choose another output"
                raise refuse("TP412", str(target), f"exists and is {kind}", remedy)
            if not force:
                raise refuse(
                    "TP411", str(target), "exists already", "Choose another output, or replace it with --force"
                )
        if not os.access(parent, os.W_OK | os.X_OK):
            raise refuse(
                "TP414", str(parent), "you may not write to this folder", "Choose an output that you may write"
            )


def require_space(folder: Path, nbytes: int) -> None:
    """Refuse (TP405) unless the disk of `folder` has `nbytes` bytes left."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise no_space(folder, nbytes, free)


def is_replaceable(place: Path, marker: str = FILE_NAME) -> bool:
    """Whether `place` is an empty folder or one with `marker` in it, itself and not through a link."""
    if place.is_symlink() or not place.is_dir():
        return False
    inside = os.listdir(place)
    return not inside or (marker in inside and (place / marker).is_file())


def absolute(path: Path) -> Path:
    """`path` from the root, without `..`, links in it left alone."""
    return Path(os.path.abspath(path))


def beside(target: Path, kind: str) -> Path:
    """A new hidden name beside `target`."""
    return target.with_name(f".{target.name}.{kind}-{secrets.token_hex(4)}")


def make_locked(target: Path) -> tuple[Path, int]:
    """A new folder beside `target` and the open lock on it."""
    while True:
        folder = beside(target, "tmp")
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        if try_lock(lock) is not False and folder.exists():
            return folder, lock
        os.close(lock)  # another compile took it for abandoned between the two lines above


def try_lock(descriptor: int) -> bool | None:
    """Lock an open folder: True when it is ours now, False when another holds it, None where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of `folder`, whatever its name becomes; gives whether it could be had."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield try_lock(descriptor) is True
    finally:
        os.close(descriptor)


def remove_abandoned(target: Path) -> None:
    """Clear away what killed compiles to `target` left; a bundle that one of them had moved aside goes back."""
    for kind in ("old", "tmp"):
        for folder in target.parent.glob(f".{glob.escape(target.name)}.{kind}-*"):
            with suppress(FileNotFoundError), locked(folder) as abandoned:
                if abandoned and kind == "old" and not os.path.lexists(target):
                    folder.rename(target)
                elif abandoned:
                    shutil.rmtree(folder, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def told(target: Path) -> Iterator[None]:
    """Turn the system's errors into refusals that name `target`."""
    try:
        yield
    except OSError as error:
        raise refuse("TP415", str(target), f"cannot make it: {error.strerror}", "Choose another output") from error
