# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `tests/golden/smollm2_greedy.npz`: `python -m tests.reference.make_smollm2 [FILE.gguf]`, with torch.

Keys: "<prompt>/text" str (the question before the chat template), "<prompt>/input_ids" int32 [S],
"<prompt>/tokens" int32 [64], "<prompt>/margins" float32 [64] (best minus second-best logit) and
"<prompt>/decoded" str. The weights are those of transformers' own GGUF reader in float32.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import golden
from tests.reference import smollm2_prompts, torch_model
from tests.smollm2 import INSTALL, packaged_file

STEPS = 64


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else packaged_file()
    if file is None:
        raise SystemExit(f"needs a GGUF file: {INSTALL}")
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()
    arrays = {"transformers": np.array(transformers.__version__), "torch": np.array(torch.__version__)}
    for name in ("text", "question", "long_text"):
        text = getattr(smollm2_prompts, name.upper())
        if name == "question":
            turn = [{"role": "user", "content": text}]
            ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        else:
            ids = tokenizer(text).input_ids
        tokens, logits = torch_model.greedy(model, list(ids), STEPS)
        second, best = np.sort(logits, axis=-1)[:, -2:].T
        arrays |= {f"{name}/text": np.array(text), f"{name}/input_ids": np.array(ids, np.int32)}
        arrays |= {f"{name}/tokens": tokens, f"{name}/margins": best - second}
        arrays[f"{name}/decoded"] = np.array(tokenizer.decode(tokens))
        ends = model.config.eos_token_id in tokens
        print(f"{name}: {len(ids)} ids, smallest margin {min(best - second):.3f}, ends early: {ends}")
        print(repr(tokenizer.decode(tokens)))
    np.savez_compressed(golden.SMOLLM2_FILE, **arrays)


if __name__ == "__main__":
    main()
