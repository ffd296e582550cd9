# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of given arrays in the optimized HLO of a compiled program."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp

_ELEMENT_TYPES = {
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "int32": "s32",
    "bool": "pred",
    "bfloat16": "bf16",
    "float32": "f32",
}
_RESULT = re.compile(r"%(\S+) = (\w+\[[\d,]*\])(\S*) (copy|transpose|convert|select)\(")
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
_COLLECTIVE = re.compile(rf"^ *(?:ROOT )?%\S+ = (.+?) ({_KINDS})(?:-start)?\((.*)$", re.MULTILINE)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$\n((?:^[^}\n].*\n)*)^\}", re.MULTILINE)
_CALLED = re.compile(r"(body|calls|to_apply|condition)=%([\w.-]+)")
_GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")
_VMEM = "S(1)"  # memory space in a layout: moving a small array into VMEM is prefetching, not a copy in HBM


def array_type(array: Any) -> str:
    """Type of an array as HLO writes it, e.g. ``bf16[30,1,56,384]``."""
    return f"{_ELEMENT_TYPES[jnp.dtype(array.dtype).name]}[{','.join(map(str, array.shape))}]"


def nbytes(array: Any) -> int:
    """Bytes of an abstract array without padding."""
    return math.prod(array.shape) * jnp.dtype(array.dtype).itemsize


def whole_copies(hlo: str, tree: Any) -> dict[str, int]:
    """Operations that write a second array of the size of a leaf into HBM, by type: how many.

    Updates in place have other names in HLO: dynamic-update-slice, scatter, or a fusion of one.
    """
    wanted = {array_type(leaf) for leaf in jax.tree.leaves(tree)}
    found: dict[str, set[str]] = {}
    for name, kind, layout, _ in _RESULT.findall(hlo):
        if kind in wanted and _VMEM not in layout:
            found.setdefault(kind, set()).add(name)
    return {kind: len(names) for kind, names in found.items()}


def copied_bytes(copies: dict[str, int], tree: Any) -> int:
    """Bytes that these copies can hold at a time, each type once per leaf or copy, whichever is fewer."""
    total = 0
    for kind, count in copies.items():
        leaves = [leaf for leaf in jax.tree.leaves(tree) if array_type(leaf) == kind]
        total += min(count, len(leaves)) * nbytes(leaves[0])
    return total


def fills_lanes(array: Any) -> bool:
    """Whether rows are a multiple of 128 lanes; others XLA:TPU orders otherwise and lays out anew for kernels."""
    return array.shape[-1] % 128 == 0


def unaligned_bytes(arrays: list[Any]) -> int:
    """Bytes of two forms of each array whose rows do not fill lanes, with what fills them."""
    return sum(2 * nbytes(x) * (-(-x.shape[-1] // 128) * 128) // x.shape[-1] for x in arrays if not fills_lanes(x))


def collectives(hlo: str) -> list[dict[str, Any]]:
    """Every operation between devices, in the order of the program's text.

    Each with its ``kind``; ``types`` of its results; how many devices take part, ``over``; and in how many loops it
    stands, ``loops``.
    """
    computations = {match[1]: match[2] for match in _COMPUTATION.finditer(hlo)}
    parents = {
        called: (name, keyword == "body")
        for name, text in computations.items()
        for keyword, called in _CALLED.findall(text)
    }

    def loops(name: str) -> int:
        parent, is_body = parents.get(name, (None, False))
        return 0 if parent is None else loops(parent) + is_body

    found = []
    for name, text in computations.items():
        for types, kind, rest in _COLLECTIVE.findall(text):
            groups = _GROUP.search(rest)
            assert groups is not None, rest
            over = int(groups[2]) if groups[2] else groups[1].count(",") + 1
            shapes = re.findall(r"\w+\[[\d,]*\]", types)
            found.append({"kind": kind, "types": shapes, "over": over, "loops": loops(name)})
    return found
