# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model directory: config.json, one or many safetensors files, tokenizer files."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np

from convert.safetensors_file import SafetensorsFile
from convert.source import TensorInfo, dominant_dtype
from qevict_jax.models.config import DTYPES, FORMAT, ModelConfig
from qevict_jax.models.tokenizer import Tokenizer, read_json
from qevict_jax.types import QEvictError

_INDEX = "model.safetensors.index.json"
_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# Buffers that early transformers releases saved although they follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class HuggingFaceDirectory:
    """Implements `Source`.

    Raises:
        QEvictError: names the file, shard or setting that is missing or not supported.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        if not (directory / "config.json").is_file():
            raise QEvictError(f"{directory} is not a Hugging Face model directory: it has no config.json")
        if not (directory / "tokenizer.json").is_file():
            raise QEvictError(
                f"{directory} has no tokenizer.json; write one with "
                "transformers.AutoTokenizer.from_pretrained(SRC).save_pretrained(SRC)"
            )
        self._hf_config = read_json(directory / "config.json")
        if self._hf_config.get("format") == FORMAT["format"]:
            raise QEvictError(f"{directory} has been converted already")
        try:
            config = ModelConfig.from_hf(self._hf_config)
        except QEvictError as error:
            raise QEvictError(f"{directory}: {error}") from None
        self._tokenizer = Tokenizer.load(directory)
        if len(self._tokenizer) > config.vocab:
            raise QEvictError(
                f"{directory}: tokenizer.json has {len(self._tokenizer)} tokens but the embedding {config.vocab} rows"
            )
        self._files: dict[str, SafetensorsFile] = {}
        for path in _weight_files(directory):
            file = SafetensorsFile(path)
            for name in file.tensors:
                if name in self._files:
                    raise QEvictError(f"{path}: tensor {name} is also in {self.tensors_of(name).where}")
                if not _DERIVED.fullmatch(name):
                    self._files[name] = file
        self.tensors: dict[str, TensorInfo] = {name: self.tensors_of(name) for name in self._files}
        if not self.tensors:
            raise QEvictError(f"{directory}: the safetensors files hold no tensor")
        dtype = dominant_dtype(self.tensors)
        self.config = dataclasses.replace(config, dtype=dtype if dtype in DTYPES else "float32")
        if self.config.tie_embeddings:
            self._drop_tied_head()

    def tensors_of(self, name: str) -> TensorInfo:
        """Header of the tensor `name`."""
        return self._files[name].tensors[name]

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """See `Source.read`."""
        return self._files[name].read(name, dtype)

    def write_companions(self, directory: Path) -> None:
        """Copies the tokenizer files; the generation config gets every EOS id that any file states."""
        for name in _COMPANIONS:
            if (self._directory / name).is_file():
                shutil.copyfile(self._directory / name, directory / name)
        generation = read_json(self._directory / "generation_config.json")
        generation["eos_token_id"] = sorted(self._tokenizer.eos_ids)
        (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")

    def _drop_tied_head(self) -> None:
        """A tied model may store the head all the same: fine when it is the embedding, ambiguous when not."""
        if _HEAD not in self.tensors or _EMBEDDING not in self.tensors:
            return
        head, embedding = self._files[_HEAD], self._files[_EMBEDDING]
        pieces = zip(head.pieces(_HEAD), embedding.pieces(_EMBEDDING), strict=False)
        same = head.tensors[_HEAD].shape == embedding.tensors[_EMBEDDING].shape
        if not same or not all(np.array_equal(a, b) for a, b in pieces):
            raise QEvictError(
                f"{head.tensors[_HEAD].where}: {_HEAD} differs from {_EMBEDDING} although config.json sets "
                "tie_word_embeddings; set it to false to use both"
            )
        del self.tensors[_HEAD]


def _weight_files(directory: Path) -> list[Path]:
    """The shards that the index names, or the only file, or numbered shards without an index."""
    if (directory / _INDEX).is_file():
        names = sorted(set(read_json(directory / _INDEX).get("weight_map", {}).values()))
        if not names:
            raise QEvictError(f"{directory / _INDEX} names no shard")
    elif (directory / "model.safetensors").is_file():
        names = ["model.safetensors"]
    else:
        names = _numbered(sorted(path.name for path in directory.glob("*.safetensors")))
    for name in names:
        if not (directory / name).is_file():
            raise QEvictError(f"{directory}: shard {name} is missing")
    if not names:
        hint = ""
        if list(directory.glob("*.bin")):
            hint = "; PyTorch .bin weights must first be saved as safetensors"
        elif list(directory.glob("*.gguf")):
            hint = "; give the path of the GGUF file itself"
        raise QEvictError(f"{directory} has no safetensors file{hint}")
    return [directory / name for name in names]


def _numbered(found: list[str]) -> list[str]:
    """All names of a set ``x-00001-of-00003.safetensors`` when one of them was found."""
    if not found:
        return []
    if len(found) == 1 and "-of-" not in found[0]:
        return found
    match = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", found[0])
    if match is None:
        raise QEvictError(f"{len(found)} safetensors files but no {_INDEX} that says which belong to the model")
    stem, digits, total = match[1], len(match[2]), match[3]
    return [f"{stem}-{i:0{digits}}-of-{total}.safetensors" for i in range(1, int(total) + 1)]
