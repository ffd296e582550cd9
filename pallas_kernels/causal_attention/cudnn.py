# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prompt by cuDNN's flash attention for NVIDIA GPUs, through XLA's custom call.

``jax.nn.dot_product_attention(implementation="cudnn")`` is the same call, but cannot be used here: it rounds the
log-sum-exp to the dtype of the queries, which leaves window masses nothing to divide by, and asks for a GPU and its
cuDNN while it is traced, so that no program could be traced or exported on a machine without them.
"""

import json
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_LARGEST_HEAD = (
    128  # what every GPU from sm_80 on takes; 256 needs sm_90, which a program cannot know when it is traced
)
_ELEMENTS = {"bfloat16": "BF16", "float16": "F16"}


def unsupported(dtype: jnp.dtype, head_dim: int) -> str | None:
    """Why cuDNN does not take a dtype or D, or None. It takes any S and any number of heads."""
    if jnp.dtype(dtype).name not in _ELEMENTS:
        return f"cuDNN attention takes {' and '.join(_ELEMENTS)}, not {jnp.dtype(dtype).name}"
    if head_dim % 8 or head_dim > _LARGEST_HEAD:
        return f"cuDNN attention takes multiples of 8 up to {_LARGEST_HEAD} as head_dim, not {head_dim}"
    return None


@jax.jit
def causal_attention(
    q: Float[Array, "B S H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"]
) -> tuple[Float[Array, "B S H D"], Float[Array, "B S H"]]:
    """`base.causal_attention`. What it needs beside its result is linear in S."""
    batch, size, heads, head_dim = q.shape
    by_head = (batch, heads, size, head_dim)
    in_memory = (0, 2, 1, 3)  # [B, H, S, D] is laid out as [B, S, H, D]
    out, lse, _ = jax.ffi.ffi_call(
        "__cudnn$fmhaSoftmax",
        (
            jax.ShapeDtypeStruct(by_head, q.dtype),
            jax.ShapeDtypeStruct(by_head[:3], jnp.float32),
            jax.ShapeDtypeStruct((0,), jnp.uint8),  # workspace: XLA puts in its size
        ),
        output_layouts=(in_memory, (0, 1, 2), (0,)),
        custom_call_api_version=2,
        legacy_backend_config=json.dumps(_backend_config(batch, heads, size, q.dtype, head_dim)),
    )(q, k, v)
    return jnp.transpose(out, in_memory), jnp.transpose(lse, (0, 2, 1))


def _backend_config(batch: int, heads: int, size: int, dtype: jnp.dtype, head_dim: int) -> dict:
    """XLA's ``CudnnfMHABackendConfig`` for a causal pass over operands laid out as [B, S, heads, D]."""

    def product(contracted: tuple[int, int], right_heads: int, left_heads: int) -> dict:
        return {
            "lhs_contracting_dimensions": [str(contracted[0])],
            "rhs_contracting_dimensions": [str(contracted[1])],
            "lhs_batch_dimensions": ["0", str(left_heads)],
            "rhs_batch_dimensions": ["0", str(right_heads)],
        }

    fmha = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": 1 / math.sqrt(head_dim),
        "intermediate_tensor_shape": {
            "element_type": _ELEMENTS[jnp.dtype(dtype).name],
            "dimensions": [str(n) for n in (batch, heads, size, size)],
            "tuple_shapes": [],
            "layout": {
                "dim_level_types": [],
                "dim_unique": [],
                "dim_ordered": [],
                "minor_to_major": ["3", "2", "1", "0"],
                "tiles": [],
                "element_size_in_bits": "0",
                "memory_space": "0",
                "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
                "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
                "dynamic_shape_metadata_prefix_bytes": "0",
            },
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "CAUSAL",
        "bmm1_dot_dimension_numbers": product((3, 3), 2, 2),  # queries and keys, both [B, S, heads, D]
        "bmm2_dot_dimension_numbers": product((3, 1), 2, 1),  # weights [B, H, S, S] and values [B, S, K, D]
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    return {"operation_queue_id": "0", "cudnn_fmha_backend_config": fmha}
