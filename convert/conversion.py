# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The conversion itself: open, check everything, then write."""

import dataclasses
import json
from pathlib import Path

from convert.destination import check_destination, check_space, replacing
from convert.gguf_model import GGUFModel
from convert.hf import HuggingFaceDirectory
from convert.source import Source, check_tensors
from convert.write import GROUP_BYTES, write_weights
from qevict_jax.models.checkpoint import CONFIG, WEIGHTS, numpy_dtype
from qevict_jax.models.config import ModelConfig
from qevict_jax.types import QEvictError


def convert(
    src: str | Path,
    dst: str | Path,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    group_bytes: int = GROUP_BYTES,
) -> Path:
    """Converts a Hugging Face directory or a GGUF file into a checkpoint that `load_params` reads.

    Args:
        src: directory with config.json, tokenizer.json and safetensors files, or a GGUF file.
        dst: directory to make.
        dtype: of the stored weights: "float32", "bfloat16" or "float16". None keeps the dtype in which most
            of the source is stored; quantized GGUF weights become bfloat16.
        overwrite: replace a checkpoint at `dst`, once the new one is complete.
        progress: show a progress bar on stderr.
        group_bytes: tensors are written in groups of this size. Host memory peaks at the larger of this and
            the largest tensor, plus what the process needs anyway.

    Returns:
        `dst`.

    Raises:
        QEvictError: names what is wrong with the source or the destination; nothing has been written then.
    """
    src, dst = Path(src), Path(dst)
    if not src.exists():
        raise QEvictError(f"{src} does not exist")
    check_destination(dst, src, overwrite=overwrite)
    source = open_source(src)
    if dtype is not None:
        numpy_dtype(dtype)
        source.config = dataclasses.replace(source.config, dtype=dtype)
    check_tensors(source, src)
    check_space(dst, _nbytes(source))
    with replacing(dst) as directory:
        source.write_companions(directory)
        write_weights(source, directory / WEIGHTS, group_bytes=group_bytes, progress=progress)
        # Last: a directory without it is no checkpoint.
        write_config(source.config, directory)
    return dst


def open_source(src: Path) -> Source:
    """Reads the headers of a model directory or GGUF file."""
    if src.is_dir():
        return HuggingFaceDirectory(src)
    if src.suffix == ".safetensors":
        raise QEvictError(f"{src} is one file of a model; give its directory, with config.json and tokenizer.json")
    return GGUFModel(src)


def write_config(config: ModelConfig, directory: Path) -> None:
    """Writes config.json of a checkpoint."""
    (directory / CONFIG).write_text(json.dumps(config.to_json(), indent=2) + "\n")


def _nbytes(source: Source) -> int:
    itemsize = numpy_dtype(source.config.dtype).itemsize
    return sum(info.size for info in source.tensors.values()) * itemsize
