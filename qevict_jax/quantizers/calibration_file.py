# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What KVQuant learns about a model before it can run, as a file beside the checkpoint."""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pallas_kernels.packing import BITS
from qevict_jax.types import KVShape, QEvictError

FILE = "kvquant.safetensors"
FORMAT = "qevict_jax.kvquant"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Calibration:
    """Ranges and codebooks of every layer, float32. Two are equal if their numbers are, so it may be static to jit.

    Attributes:
        key_range: ``[2, L, K, D]`` lowest and highest key of each channel, outliers left out, before RoPE and bias.
        key_poles: for each code width its codebook, ``[L, 2**bits]`` ascending in -1 .. 1.
        value_poles: the same of values.
        outliers: share of the numbers that the ranges leave out.
        fingerprint: `checkpoint_fingerprint` of the model.
        facts: how it was made.
    """

    key_range: np.ndarray
    key_poles: dict[int, np.ndarray]
    value_poles: dict[int, np.ndarray]
    outliers: float
    fingerprint: str
    facts: dict[str, str | int | float]

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by the name they have in the file."""
        poles = {f"key_poles_{bits}": x for bits, x in self.key_poles.items()}
        poles |= {f"value_poles_{bits}": x for bits, x in self.value_poles.items()}
        return {"key_range": self.key_range, **poles}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the arrays."""
        content = hashlib.sha256()
        for name, x in sorted(self.arrays().items()):
            content.update(name.encode() + np.ascontiguousarray(x).tobytes())
        return content.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def save(self, path: Path) -> None:
        """Writes the file; an old one is there until the new one is whole."""
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "outliers": self.outliers,
            "model": self.fingerprint,
            **self.facts,
        }
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            save_file(self.arrays(), part, metadata={"calibration": json.dumps(facts)})
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def checkpoint_fingerprint(directory: str | Path) -> str:
    """SHA-256 of a checkpoint's configuration and of the manifests of its weights, which name every block of data.

    A copy of a checkpoint has the same one; a model that is converted again has another. "" for no directory.
    """
    if not directory:
        return ""
    root = Path(directory)
    content = hashlib.sha256()
    for file in (root / "config.json", *sorted(root.rglob("manifest.ocdbt"))):
        content.update(file.read_bytes())
    return content.hexdigest()


def load_calibration(path: str | Path, shape: KVShape) -> Calibration:
    """Reads what ``qevict calibrate`` wrote.

    Args:
        path: the file.
        shape: of the model that it is for; one with a ``checkpoint`` must be the very model that was calibrated.

    Raises:
        QEvictError: no such file, not one of these, or one of another model.
    """
    again = f"run `qevict calibrate {shape.checkpoint or 'MODEL'}`"
    if not Path(path).is_file():
        raise QEvictError(f"there is no {path}, and kvquant needs calibrated ranges and codebooks: {again}")
    try:
        with safe_open(str(path), framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("calibration", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, ValueError) as error:
        raise QEvictError(f"{path} is no calibration: {error}; {again}") from None
    if facts.pop("format", None) != FORMAT or facts.pop("version", None) != VERSION:
        raise QEvictError(f"{path} is no calibration of version {VERSION}; {again}")
    wanted = (2, shape.layers, shape.kv_heads, shape.head_dim)
    if arrays["key_range"].shape != wanted:
        found = arrays["key_range"].shape[1:]
        raise QEvictError(
            f"{path} is of a model with [layers, KV heads, head_dim] {list(found)}, not {list(wanted[1:])}"
        )
    fingerprint = facts.pop("model")
    if shape.checkpoint and fingerprint and fingerprint != checkpoint_fingerprint(shape.checkpoint):
        raise QEvictError(f"{path} was calibrated for another checkpoint than {shape.checkpoint}; {again}")
    return Calibration(
        key_range=arrays["key_range"],
        key_poles={bits: arrays[f"key_poles_{bits}"] for bits in BITS},
        value_poles={bits: arrays[f"value_poles_{bits}"] for bits in BITS},
        outliers=facts.pop("outliers"),
        fingerprint=fingerprint,
        facts=facts,
    )
