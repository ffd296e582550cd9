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
from typing import Any, NamedTuple

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


class Part(NamedTuple):
    """An argument or a result: its kind, and the policy of its cache if it has one."""

    kind: Kind
    policy: Policy | None = None


PARAMS, BATCH = Part(Kind.PARAMS), Part(Kind.BATCH)

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
    """A program of a decoder as a jitted program of the mesh.

    Args:
        mesh: the devices.
        policy: the cache policy of one of them.
        name: of the program.
        program: what one device runs.
        args: abstract, of the whole mesh.
        donated: positions of the arguments whose memory the result reuses.
    """
    takes, gives = _parts(policy, name)
    made = _result_specs(mesh, takes, gives, args)
    return jax.jit(
        lambda *args: run_on_devices(mesh, program, takes, gives, args),
        in_shardings=_shardings(mesh, _argument_specs(mesh, takes, args)),
        out_shardings=_shardings(mesh, _itself_if_one(made)),
        donate_argnums=donated,
    )


def run_on_devices(
    mesh: DeviceMesh, program: Callable, takes: tuple[Part, ...], gives: tuple[Part, ...], args: tuple
) -> Any:
    """What a program of one device gives on all of them, for arguments of the whole mesh; under ``jax.jit``."""
    # what wanders comes to all
    given = tuple(
        spec if part.kind is not Kind.WANDERING else _spec(part, P(), arg)
        for part, arg, spec in zip(takes, args, _argument_specs(mesh, takes, args), strict=True)
    )
    made = _result_specs(mesh, takes, gives, args)

    def local(*args: Any) -> tuple:
        out = program(*(_on_cache(part.kind, arg, lambda x: x[0]) for part, arg in zip(takes, args, strict=True)))
        out = (out,) if len(gives) == 1 else out
        return tuple(_on_cache(part.kind, result, lambda x: x[None]) for part, result in zip(gives, out, strict=True))

    spread = jax.shard_map(local, mesh=mesh.mesh, in_specs=given, out_specs=made, check_vma=False)
    return _itself_if_one(spread(*args))


def place_arguments(mesh: DeviceMesh, policy: Policy, name: str, args: tuple) -> tuple:
    """The arguments where the program wants them; what is there already stays."""
    specs = _argument_specs(mesh, _parts(policy, name)[0], args)

    def put(spec: P, part: Any) -> Any:
        return jax.tree.map(lambda x: mesh.put(x, spec), part)

    return jax.tree.map(put, specs, args, is_leaf=_is_spec)


def make_sharded(mesh: DeviceMesh, policy: Policy, make: Callable[[int], Rows], count: int) -> Rows:
    """Rows that every device makes its part of, with ``make`` for a number of them."""
    rows = mesh.rows(count)
    spec = _spec(Part(Kind.ROWS, policy), rows, None)
    part = count // mesh.shape.data if len(rows) else count

    def local() -> Rows:
        return _on_cache(Kind.ROWS, make(part), lambda x: x[None])

    return jax.jit(jax.shard_map(local, mesh=mesh.mesh, in_specs=(), out_specs=spec, check_vma=False))()


def _parts(policy: Policy, name: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    takes, gives = _SIGNATURES[name]
    return tuple(Part(kind, policy) for kind in takes), tuple(Part(kind, policy) for kind in gives)


def _argument_specs(mesh: DeviceMesh, takes: tuple[Part, ...], args: tuple) -> tuple:
    """A spec for every argument, or a tree of specs that begins as it does."""
    return tuple(_spec(part, mesh.rows(_count(part.kind, arg)), arg) for part, arg in zip(takes, args, strict=True))


def _result_specs(mesh: DeviceMesh, takes: tuple[Part, ...], gives: tuple[Part, ...], args: tuple) -> tuple[Any, ...]:
    """The same for the results, which have the rows of the first argument that has any."""
    given = zip(takes, args, strict=True)
    count = next(_count(part.kind, arg) for part, arg in given if part.kind is not Kind.PARAMS)
    return tuple(_spec(part, mesh.rows(count), None) for part in gives)


def _itself_if_one(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results


def _count(kind: Kind, arg: Any) -> int:
    """Rows of an argument; of one that has none, 1."""
    if kind is Kind.CACHE:
        return arg.length.shape[-1]
    if kind in (Kind.ROWS, Kind.WANDERING):
        arg = arg.state
    if isinstance(arg, DecodeState):
        return arg.count.shape[0]
    return jax.tree.leaves(arg)[0].shape[0] if kind is Kind.BATCH else 1


def _spec(part: Part, rows: Any, arg: Any) -> Any:
    kind, policy = part
    if kind is Kind.PARAMS:
        return param_specs(arg)
    if kind is Kind.SCALAR:
        return P()
    if kind is Kind.BATCH:
        return rows
    assert policy is not None
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
