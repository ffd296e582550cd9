# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `tests/golden/kept_sets.npz`: `python -m tests.reference.make_kept_sets` where torch and kvpress are.

kvpress needs an older transformers than the rest of the tests, so it has an environment of its own:
`pip install torch kvpress ml_dtypes tokenizers safetensors jinja2`.
"""

import tempfile
from importlib.metadata import version
from pathlib import Path

import kvpress
import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from tests.golden import kept_sets
from tests.tiny_models import write_hf

RATIO = 1 - kept_sets.KEPT / kept_sets.SIZE


def presses() -> dict[str, kvpress.BasePress]:
    """kvpress's form of every case."""

    def snapkv() -> kvpress.SnapKVPress:
        return kvpress.SnapKVPress(RATIO, kept_sets.WINDOW, kept_sets.KERNEL)

    return {
        "streaming_llm": kvpress.StreamingLLMPress(RATIO),
        "snapkv": snapkv(),
        "adakv": kvpress.AdaKVPress(snapkv()),
        "criticalkv_uniform": kvpress.CriticalKVPress(snapkv()),
        "criticalkv": kvpress.CriticalAdaKVPress(snapkv()),
    }


@torch.no_grad()
def kept(model: torch.nn.Module, press: kvpress.BasePress, tokens: np.ndarray) -> np.ndarray:
    """Bool ``[L, K, S]``: found by looking for the kept keys among all keys, or from the mask of head-wise presses."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    whole, cut = DynamicCache(config=model.config), DynamicCache(config=model.config)
    model(ids, past_key_values=whole)
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    with press(model):
        model(ids, past_key_values=cut)
    sets = []
    for index, layer in enumerate(model.model.layers):
        keys, stored = whole.layers[index].keys[0], cut.layers[index].keys[0]
        masked = layer.self_attn.masked_key_indices
        if masked is not None:
            there = torch.ones(keys.shape[:2], dtype=torch.bool)
            there[masked[1], masked[2]] = False
            layer.self_attn.masked_key_indices = None
        else:
            there = (keys[:, :, None] == stored[:, None]).all(dim=-1).any(dim=-1)
        sets.append(there.numpy())
    return np.stack(sets)


def main() -> None:
    arrays = {"kvpress": np.array(version("kvpress")), "transformers": np.array(version("transformers"))}
    for name in kept_sets.MODELS:
        with tempfile.TemporaryDirectory() as directory:
            made = write_hf(Path(directory), name)
            model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32, attn_implementation="sdpa").eval()
            arrays[f"{name}/tokens"] = kept_sets.tokens(name)
            for case, press in presses().items():
                there = kept(model, press, arrays[f"{name}/tokens"])
                assert there.sum(axis=(1, 2)).tolist() == [kept_sets.KEPT * there.shape[1]] * len(there), case
                arrays[f"{name}/{case}"] = there
                print(name, case, "per head", there.sum(axis=2).tolist())
    np.savez_compressed(kept_sets.FILE, **arrays)


if __name__ == "__main__":
    main()
