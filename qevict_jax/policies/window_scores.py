# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""SnapKV's score of a prompt (arXiv:2404.14469), which AdaKV and CriticalKV start from.

    score_j = mean over g of pool_j( 1/W sum over the last W queries of a_(g,query,j) )     for j < n - W

The window's own W tokens are not pooled; they are pinned, so that a prompt keeps all of them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from qevict_jax.policies.base import Prompt
from qevict_jax.policies.token_method import Start
from qevict_jax.token_scores import observe_prompt, pool


def window_scores(prompt: Prompt, window: int, kernel: int, pooling: str, group_first: bool = False) -> Start:
    """Scores of all tokens and the window pinned.

    Args:
        prompt: the prompt.
        window: W, its last queries.
        kernel: tokens that are pooled.
        pooling: "avg" or "max".
        group_first: mean over the G query heads before pooling instead of after it; the same with "avg".
    """
    size = prompt.k.shape[1]
    old = jnp.arange(size) < prompt.length[:, None] - window

    def reduce(probabilities: Float[Array, "B G W S"]) -> Float[Array, "B S"]:
        mass = probabilities.sum(axis=2) / window
        if group_first:
            mass = mass.mean(axis=1, keepdims=True)
        pooled = pool(jnp.where(old[:, None], mass, 0.0), kernel, pooling)
        return jnp.where(old, pooled.mean(axis=1), mass.mean(axis=1))

    score = observe_prompt(prompt.q, prompt.k, prompt.lse, prompt.length, window, reduce)
    return Start(score, pinned=jnp.broadcast_to(~old[..., None], score.shape))
