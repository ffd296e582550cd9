# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What a number depends on besides its settings: versions, device, commit, and the texts by their hashes."""

import hashlib
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from qevict_jax.types import QEvictError
from qevict_jax.version import __version__

_GIT_TIMEOUT = 10  # seconds


def environment() -> dict[str, Any]:
    """Versions, device, and the commit of the checkout that this package lies in (None if it lies in none)."""
    device = jax.devices()[0]
    return {
        "qevict_jax": __version__,
        "commit": commit(Path(__file__).parent),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform} ({device.device_kind})",
    }


def commit(directory: Path) -> str | None:
    """The git commit checked out around a directory, with "+changes" if tracked files differ from it."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *words], capture_output=True, text=True, timeout=_GIT_TIMEOUT
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # an environment inside some other checkout is not that checkout's commit
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    head = git("rev-parse", "HEAD")
    return f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no") else head


def text_hash(text: str) -> str:
    """SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def token_hash(tokens: Iterable[int]) -> str:
    """SHA-256 of token ids, written as decimal numbers with spaces between them."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()


def read_source(file: Path) -> tuple[str, str]:
    """A UTF-8 file and its SHA-256.

    Raises:
        QEvictError: there is no such file, or it is not text.
    """
    if not file.is_file():
        raise QEvictError(f"{file} is not a file")
    content = file.read_bytes()
    try:
        return content.decode("utf-8"), hashlib.sha256(content).hexdigest()
    except UnicodeDecodeError as error:
        raise QEvictError(f"{file} is not UTF-8 text (byte {error.start} is {content[error.start]:#04x})") from None
