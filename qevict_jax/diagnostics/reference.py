# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The attention of an uncompressed run, on disk: recorded once, read by every metric of every policy.

Attention to a discarded position cannot be seen in the compressed run itself (paper, Appendix I.1). The file is an
``.npz`` written member by member while the model runs, and read one layer at a time: neither side ever holds the
attention of all layers over all steps.
"""

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from qevict_jax.config import CacheConfig
from qevict_jax.diagnostics import fingerprint
from qevict_jax.diagnostics.full_attention import FullAttention, ProbedCache
from qevict_jax.evaluation.provenance import token_hash
from qevict_jax.models import LanguageModel
from qevict_jax.models.steps import prefill, step_logits
from qevict_jax.policies import plan_cache
from qevict_jax.types import QEvictError

FORMAT = 1
_CHUNK = 32  # tokens that share one pass over the weights
_CHUNK_BYTES = 128 << 20  # of probabilities of a chunk, all layers


@dataclass(frozen=True)
class ReferenceSettings:
    """What a reference depends on; one that differs in any of it is another reference.

    Attributes:
        model: `fingerprint.of_model`.
        text: `provenance.token_hash` of the ``prefill + steps + 1`` tokens.
        prefill: tokens of the prompt.
        steps: N, tokens fed after it.
        every: decode steps whose attention is added up in the file; events lie on multiples of it.
        kv_dtype: dtype in which the full cache is stored.
        format: version of the file.
    """

    model: str
    text: str
    prefill: int
    steps: int
    every: int
    kv_dtype: str
    format: int = FORMAT


@dataclass(frozen=True)
class Reference:
    """Attention of the full cache, per layer and head.

    Attributes:
        path: the file.
        settings: what it was made from.
        prompt_mass: ``[L, H, S]`` float32, what each position received from all queries of the prompt.
        nll: ``[N]``, minus the log-probability of the token that follows each fed one, nats.
    """

    path: Path
    settings: ReferenceSettings
    prompt_mass: Float[np.ndarray, "L H S"]
    nll: Float[np.ndarray, "N"]

    def mass(self, layer: int) -> Float[np.ndarray, "sums H S"]:
        """What each position received during each ``every`` decode steps, float32. One layer is in memory at a time.

        Raises:
            QEvictError: if the file is damaged.
        """
        settings = self.settings
        sums = settings.steps // settings.every
        mass = np.zeros((sums, *self.prompt_mass.shape[1:]), np.float32)
        with _reading(self.path) as archive:
            names = [name for name in archive.namelist() if name.endswith(_layer_name(layer))]
            at = 0
            for name in sorted(names):
                part = _read_array(archive, name)
                mass[at : at + part.shape[0], :, : part.shape[2]] = part
                at += part.shape[0]
        if at != sums:
            raise QEvictError(f"{self.path} is damaged: layer {layer} has {at} of {sums} sums; delete it")
        return mass


def settings_of(
    model: LanguageModel,
    tokens: Sequence[int] | Int[np.ndarray, "size"],
    *,
    prefill: int,
    steps: int,
    every: int = 1,
    kv_dtype: str = "bfloat16",
) -> ReferenceSettings:
    """Settings of a reference run.

    Args:
        model: the model.
        tokens: the text, BOS included; the first ``prefill + steps + 1`` are used.
        prefill: tokens of the prompt.
        steps: tokens fed after it.
        every: decode steps to add up; 1 for policies that decide at every step.
        kv_dtype: dtype in which the full cache is stored.

    Raises:
        QEvictError: if the text or the model's context is too short, or ``every`` does not divide ``steps``.
    """
    if prefill < 1 or steps < 1:
        raise QEvictError(f"prefill={prefill} and steps={steps} must be at least 1")
    if every < 1 or steps % every:
        raise QEvictError(f"steps={steps} must be a multiple of every={every}")
    if len(tokens) < prefill + steps + 1:
        raise QEvictError(
            f"prefill={prefill} and steps={steps} need {prefill + steps + 1} tokens; the text has {len(tokens)}"
        )
    if prefill + steps > model.config.max_position:
        raise QEvictError(
            f"prefill={prefill} and steps={steps} exceed the model's context of {model.config.max_position} tokens"
        )
    used = token_hash(map(int, tokens[: prefill + steps + 1]))
    return ReferenceSettings(fingerprint.of_model(model), used, prefill, steps, every, kv_dtype)


def reference(
    model: LanguageModel,
    tokens: Sequence[int] | Int[np.ndarray, "size"],
    path: str | Path,
    settings: ReferenceSettings,
    *,
    progress: bool = False,
) -> Reference:
    """Opens a reference, or runs the full cache and writes it.

    Args:
        model: the model.
        tokens: the text, BOS included.
        path: the ``.npz`` file.
        settings: from `settings_of` for this model and these tokens.
        progress: show a bar on stderr.

    Raises:
        QEvictError: if the file is there but was made from something else, or is damaged.
    """
    path = Path(path)
    if not path.exists():
        with _writing(path) as archive:
            _record(model, np.asarray(tokens, np.int32), settings, archive, progress)
    return open_reference(path, settings)


def open_reference(path: str | Path, expected: ReferenceSettings | None = None) -> Reference:
    """Opens a reference.

    Raises:
        QEvictError: if it was made from something else than ``expected``, is damaged, or is no reference.
    """
    path = Path(path)
    with _reading(path) as archive:
        header = json.loads(bytes(_read_array(archive, "header.npy")))
        if header.get("format") != FORMAT:
            raise QEvictError(f"{path} has format {header.get('format')}; this version reads {FORMAT}: delete it")
        settings = ReferenceSettings(**header)
        if expected is not None and settings != expected:
            names = [x.name for x in fields(settings) if getattr(settings, x.name) != getattr(expected, x.name)]
            differences = ", ".join(f"{x} {getattr(settings, x)} instead of {getattr(expected, x)}" for x in names)
            raise QEvictError(f"{path} is the reference of another run ({differences}); delete it or use another place")
        return Reference(path, settings, _read_array(archive, "prompt_mass.npy"), _read_array(archive, "nll.npy"))


def _record(
    model: LanguageModel, tokens: np.ndarray, settings: ReferenceSettings, archive: zipfile.ZipFile, progress: bool
) -> None:
    config, every = model.config, settings.every
    total = settings.prefill + settings.steps
    shape = config.kv_shape(settings.kv_dtype)
    sum_bytes = 2 * config.layers * config.heads * total
    chunk = every * max(1, min(_CHUNK // every, _CHUNK_BYTES // sum_bytes))
    plan = plan_cache(shape, CacheConfig.full(settings.kv_dtype), total)
    policy = FullAttention(plan, replace(shape, dtype=settings.kv_dtype), chunk, heads=config.heads, every=every)

    read = jax.jit(prefill, static_argnames=("program", "policy"))
    _, cache = read(
        model.program, model.params, policy, tokens[None, : settings.prefill], np.array([settings.prefill], np.int32)
    )
    _write_array(archive, "header.npy", np.frombuffer(json.dumps(asdict(settings)).encode(), np.uint8))
    _write_array(archive, "prompt_mass.npy", np.asarray(cache.prompt_mass[:, 0]))
    nll = []
    with tqdm(total=settings.steps, desc="full cache", unit="step", disable=not progress) as bar:
        for start in range(0, settings.steps, chunk):
            count = min(chunk, settings.steps - start)
            at = settings.prefill + start
            fed = np.zeros((1, chunk), np.int32)
            following = np.zeros(chunk, np.int32)
            fed[0, :count], following[:count] = tokens[at : at + count], tokens[at + 1 : at + count + 1]
            losses, cache = _feed(
                model.program, model.params, policy, cache, fed, np.array([count], np.int32), following
            )
            nll.append(np.asarray(losses)[:count])
            mass = np.asarray(cache.step_mass)[:, 0, : count // every, :, : at + count]
            for layer in range(config.layers):
                _write_array(archive, f"mass/{start:07d}{_layer_name(layer)}", mass[layer])
            bar.update(count)
    _write_array(archive, "nll.npy", np.concatenate(nll))


@partial(jax.jit, static_argnames=("program", "policy"), donate_argnames="cache")
def _feed(
    program: Any,
    params: Any,
    policy: FullAttention,
    cache: ProbedCache,
    tokens: Int[Array, "1 T"],
    count: Int[Array, "1"],
    following: Int[Array, "T"],
) -> tuple[Float[Array, "T"], ProbedCache]:
    logits, cache = step_logits(program, params, policy, cache, tokens, count)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits[0]), following[:, None], axis=-1)[:, 0]
    return losses, cache


def _layer_name(layer: int) -> str:
    return f"/layer{layer:04d}.npy"


def _write_array(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(name, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


@contextmanager
def _reading(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, TypeError) as error:
        if isinstance(error, QEvictError):
            raise
        raise QEvictError(f"{path} is damaged or no reference ({error}); delete it") from None


@contextmanager
def _writing(path: Path) -> Iterator[zipfile.ZipFile]:
    """A file that appears under its name only when it is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file: IO[bytes]
        with open(part, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            yield archive
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
