# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a decoder on a mesh: each device runs the program of one device on its own heads and rows.

Under `jax.shard_map` nothing is distributed behind our back: kernels run as they are, and what devices tell each other
is written down, in `models.transformer` and `HeadSplit`. Every array of the cache gets an axis in front with an entry
for each device of a row, so each keeps what it alone knows; what all know is there, and charged, once for each.

Rows are split over ``data`` where it divides their number, and are on every part of the batch where it does not: so
are those of a prompt that is read alone.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from qevict_jax.decode_state import DecodeState, Rows
from qevict_jax.mesh import MODEL, DeviceMesh
from qevict_jax.models.partition import param_specs
from qevict_jax.policies import Policy
from qevict_jax.rows import RowAxis, row_axes


class Kind(Enum):
    """What an argument or a result of a program is. ``WANDERING`` are rows that any part of the batch may take in."""

    PARAMS, BATCH, CACHE, STATE, ROWS, WANDERING, SCALAR = range(7)


_STEP = (Kind.PARAMS, Kind.STATE, Kind.BATCH)
# name of a program -> its arguments, its results
_SIGNATURES: dict[str, tuple[tuple[Kind, ...], tuple[Kind, ...]]] = {
    "read": ((Kind.PARAMS, Kind.BATCH, Kind.BATCH), (Kind.BATCH, Kind.CACHE)),
    "feed": ((Kind.PARAMS, Kind.CACHE, Kind.BATCH, Kind.BATCH), (Kind.BATCH, Kind.CACHE)),
    "begin": ((Kind.PARAMS, Kind.CACHE, Kind.BATCH, Kind.BATCH, Kind.BATCH, Kind.BATCH), (Kind.STATE,)),
    "token": (_STEP, (Kind.STATE,)),
    "event": (_STEP[:2], (Kind.STATE,)),
    "block": (_STEP, (Kind.STATE,)),
    "run": (_STEP, (Kind.STATE,)),
    "insert": ((Kind.ROWS, Kind.WANDERING, Kind.SCALAR, Kind.SCALAR), (Kind.ROWS,)),
    "release": ((Kind.STATE, Kind.SCALAR), (Kind.STATE,)),
}


def shard_program(mesh: DeviceMesh, policy: Policy, name: str, program: Callable, args: tuple, donated: tuple) -> Any:
    """A program of one device as a jitted program of the mesh.

    Args:
        mesh: the devices.
        policy: the cache policy of one of them.
        name: of the program.
        program: what one device runs.
        args: abstract, of the whole mesh.
        donated: positions of the arguments whose memory the result reuses.
    """
    kinds, made = _SIGNATURES[name]
    given = _argument_specs(mesh, policy, name, args)
    # what wanders comes to all
    taken = tuple(
        _spec(policy, kind, P(), arg) if kind is Kind.WANDERING else spec
        for kind, spec, arg in zip(kinds, given, args, strict=True)
    )
    count = next(_count(kind, arg) for kind, arg in zip(kinds, args, strict=True) if kind is not Kind.PARAMS)
    results = tuple(_spec(policy, kind, mesh.rows(count), None) for kind in made)

    def local(*args: Any) -> tuple:
        out = program(*(_on_cache(kind, arg, lambda x: x[0]) for kind, arg in zip(kinds, args, strict=True)))
        out = (out,) if len(made) == 1 else out
        return tuple(_on_cache(kind, result, lambda x: x[None]) for kind, result in zip(made, out, strict=True))

    spread = jax.shard_map(local, mesh=mesh.mesh, in_specs=taken, out_specs=results, check_vma=False)

    def whole(*args: Any) -> Any:
        out = spread(*args)
        return out[0] if len(made) == 1 else out

    out_specs = results[0] if len(made) == 1 else results
    return jax.jit(
        whole, in_shardings=_shardings(mesh, given), out_shardings=_shardings(mesh, out_specs), donate_argnums=donated
    )


def place_arguments(mesh: DeviceMesh, policy: Policy, name: str, args: tuple) -> tuple:
    """The arguments where the program wants them; what is there already stays."""
    specs = _argument_specs(mesh, policy, name, args)

    def put(spec: P, part: Any) -> Any:
        return jax.tree.map(lambda x: mesh.put(x, spec), part)

    return jax.tree.map(put, specs, args, is_leaf=_is_spec)


def make_sharded(mesh: DeviceMesh, policy: Policy, make: Callable[[int], Rows], count: int) -> Rows:
    """Rows that every device makes its part of, with ``make`` for a number of them."""
    rows = mesh.rows(count)
    spec = _spec(policy, Kind.ROWS, rows, None)
    part = count // mesh.shape.data if len(rows) else count

    def local() -> Rows:
        return _on_cache(Kind.ROWS, make(part), lambda x: x[None])

    return jax.jit(jax.shard_map(local, mesh=mesh.mesh, in_specs=(), out_specs=spec, check_vma=False))()


def _argument_specs(mesh: DeviceMesh, policy: Policy, name: str, args: tuple) -> tuple:
    """A spec for every argument, or a tree of specs that begins as it does."""
    kinds, _ = _SIGNATURES[name]
    return tuple(_spec(policy, kind, mesh.rows(_count(kind, arg)), arg) for kind, arg in zip(kinds, args, strict=True))


def _count(kind: Kind, arg: Any) -> int:
    """Rows of an argument; of one that has none, 1."""
    if kind is Kind.CACHE:
        return arg.length.shape[-1]
    if kind in (Kind.ROWS, Kind.WANDERING):
        arg = arg.state
    if isinstance(arg, DecodeState):
        return arg.count.shape[0]
    return jax.tree.leaves(arg)[0].shape[0] if kind is Kind.BATCH else 1


def _spec(policy: Policy, kind: Kind, rows: Any, arg: Any) -> Any:
    if kind is Kind.PARAMS:
        return param_specs(arg)
    if kind is Kind.SCALAR:
        return P()
    if kind is Kind.BATCH:
        return rows
    cache = _cache_specs(policy, rows)
    if kind is Kind.CACHE:
        return cache
    state = DecodeState(cache, *[rows] * 6)
    return state if kind is Kind.STATE else Rows(state, rows)


@lru_cache
def _cache_specs(policy: Policy, rows: P) -> Any:
    """The devices of a row in front, then rows where the arrays of the policy have them."""

    def spec(at: RowAxis) -> P:
        return P(MODEL) if at.axis < 0 else P(MODEL, *[None] * at.axis, *rows)

    return jax.tree.map(spec, row_axes(policy.init), is_leaf=lambda x: isinstance(x, RowAxis))


def _on_cache(kind: Kind, arg: Any, change: Callable[[jax.Array], jax.Array]) -> Any:
    """The argument with every array of its cache changed."""
    if kind is Kind.CACHE:
        return jax.tree.map(change, arg)
    if kind is Kind.STATE:
        return replace(arg, cache=jax.tree.map(change, arg.cache))
    if kind in (Kind.ROWS, Kind.WANDERING):
        return arg._replace(state=_on_cache(Kind.STATE, arg.state, change))
    return arg


def _shardings(mesh: DeviceMesh, specs: Any) -> Any:
    return jax.tree.map(mesh.sharding, specs, is_leaf=_is_spec)


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)
