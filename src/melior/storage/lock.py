"""One run at a time in a folder. The lock dies with its process, so a killed run leaves none behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from melior.errors import UserError

NAME = "lock"
_held: set[int] = set()  # descriptors of this process's locks


class FolderLock:
    """Holds `FOLDER/lock` (which says by whom) from construction until `release`.

    Raises UserError when another run holds it, be it in this process, or when the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._descriptor: int | None = _acquire(self.path)
        _held.add(self._descriptor)

    def release(self) -> None:
        """Give the folder free; a second call does nothing."""
        if self._descriptor is None:
            return
        self.path.unlink(missing_ok=True)
        _held.discard(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None


def is_held(folder: Path) -> bool:
    """Whether a run is using the folder just now."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _acquire(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot lock {path.parent}: {error.strerror}; give another --out") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise UserError(f"cannot lock {path.parent}: {error.strerror}; give another --out") from error
            raise UserError(
                f"another run is using {path.parent} ({holder or 'it is just starting'}); wait for it or give another "
                "--out"
            ) from error
        if _is_at(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return descriptor
        os.close(descriptor)  # the holder removed the file between our opening and our locking it


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _let_go_in_child() -> None:
    """A forked worker shares the lock; closing its copy keeps the lock from outliving a killed parent."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
