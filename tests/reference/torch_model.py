# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""transformers as the other opinion: float32, eager attention, CPU. Imported by reference tests only."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel


def load(directory: Path, **changes) -> PreTrainedModel:
    """The model in `directory`; `changes` overwrite keys of config.json before it is read."""
    if changes:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def logits(model: PreTrainedModel, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float32 [S, V] for one sequence of tokens [S] at positions [S].

    The mask of ones matters: without it transformers reads a gap in the positions as the border between two
    packed sequences.
    """
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    where = torch.from_numpy(positions.astype(np.int64))[None]
    output = model(ids, attention_mask=torch.ones_like(ids), position_ids=where, use_cache=False)
    return output.logits[0].numpy()


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: list[int], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Greedy tokens int32 [steps] with a DynamicCache, and the logits float32 [steps, V] they came from.

    Does not stop at an end-of-sequence token.
    """
    cache = DynamicCache(config=model.config)
    step_input = torch.tensor([prompt])
    tokens, rows = [], []
    for _ in range(steps):
        row = model(step_input, cache=cache, use_cache=True).logits[0, -1]
        rows.append(row.numpy().copy())
        tokens.append(int(row.argmax()))
        step_input = torch.tensor([[tokens[-1]]])
    return np.array(tokens, np.int32), np.stack(rows)
