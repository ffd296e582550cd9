# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint directory that appears complete or not at all.

Everything is written into a hidden sibling of the destination, which a rename makes the checkpoint. A killed
run leaves that sibling, without config.json; the next run to the same destination removes it.
"""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from qevict_jax.models.checkpoint import read_config
from qevict_jax.types import QEvictError


def check_destination(path: Path, source: Path, *, overwrite: bool) -> None:
    """Refuses a destination that exists, or that `overwrite` would destroy although it is no checkpoint.

    Raises:
        QEvictError: says what is there and what would work.
    """
    _recover(path)
    here, there = path.resolve(), source.resolve()
    if here == there or here in there.parents or (there.is_dir() and there in here.parents):
        raise QEvictError(f"{path} and the source {source} must not contain each other")
    if not path.exists():
        return
    if not overwrite:
        raise QEvictError(f"{path} exists; choose another destination or pass --overwrite")
    if not path.is_dir():
        raise QEvictError(f"{path} is a file, not a checkpoint: it will not be overwritten")
    if any(path.iterdir()):
        try:
            read_config(path)
        except QEvictError:
            raise QEvictError(f"{path} is not a qevict_jax checkpoint: it will not be overwritten") from None


def check_space(path: Path, needed: int) -> None:
    """Refuses to start when the disk cannot hold `needed` bytes.

    Raises:
        QEvictError: says how much is free.
    """
    parent = next(parent for parent in path.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise QEvictError(f"{path} needs {needed / 2**30:.1f} GiB, the disk has {free / 2**30:.1f} GiB free")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty directory that becomes `path` when the block succeeds and disappears when it fails.

    Raises:
        QEvictError: another process is writing the same checkpoint.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    working, old = _sibling(path, "converting"), _sibling(path, "old")
    lock_file = _sibling(path, "lock")
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise QEvictError(f"another process is converting to {path}") from None
        try:
            shutil.rmtree(working, ignore_errors=True)
            working.mkdir()
            yield working
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)
                path.rename(old)
            working.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(working, ignore_errors=True)
            lock_file.unlink()


def _recover(path: Path) -> None:
    """Undoes the first of two renames when a run was killed between them."""
    old = _sibling(path, "old")
    if old.is_dir() and not path.exists():
        old.rename(path)


def _sibling(path: Path, kind: str) -> Path:
    return path.absolute().parent / f".{path.absolute().name}.{kind}"
