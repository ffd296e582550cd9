# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""All that the GPU kernel takes from Triton, so that another backend of Pallas is another file like this one.

Arithmetic on pairs of 16-bit floats is written in PTX: one instruction does two channels, and compilers do not find the
pairs by themselves (LOG.md). Each such function says in JAX what it computes, which is what interpret mode runs.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jaxtyping import Array, Float, Int, Shaped, UInt16

CompilerParams = pltriton.CompilerParams

# Truth table of `(a & b) | c` for lop3: the operation applied to the tables of its three inputs.
_AND_OR = (0xF0 & 0xCC) | 0xAA


class Field(NamedTuple):
    """Bits of a code inside a 16-bit word: ``bits`` bits at ``position``, which are bits ``low ..`` of the code."""

    bits: int
    low: int
    position: int


def decode(
    words: tuple[UInt16[Array, "*n"], ...], fields: tuple[Field, ...], dtype: str, interpret: bool, exponent: int = 0
) -> Float[Array, "*n"]:
    """Codes as floats times ``2**exponent``, exactly.

    On the device the bits go into the mantissa of a power of two, whose last place they then are: no conversion from
    integer, which runs at a quarter of the rate. An "and-or" places each field and one multiply-add takes away the
    power of two.

    Args:
        words: one array for each field.
        fields: where the bits of a code are.
        dtype: "float16" or "bfloat16".
        interpret: compute in plain JAX.
        exponent: of the power of two.
    """
    if interpret:
        codes = sum(
            ((word.astype(jnp.int32) >> field.position) & ((1 << field.bits) - 1)) << field.low
            for word, field in zip(words, fields, strict=True)
        )
        return jnp.asarray(codes).astype(dtype) * jnp.asarray(2.0**exponent, dtype)
    mantissa = jnp.finfo(dtype).nmant
    width = sum(field.bits for field in fields)
    step = fields[0].bits
    # as many codes of a word as the mantissa holds stand where they are, the next ones share one shift
    together = ((mantissa - width) // step + 1) * step
    place = fields[0].position % together

    def both(number: float) -> str:
        return _both(int(np.asarray(number, dtype).view(np.uint16)))

    lines = [f"mov.b32 x, {both(2.0**mantissa)};"]
    for index, field in enumerate(fields):
        shift = field.position - place - field.low
        moved = "shr" if shift > 0 else "shl"
        lines.append(f"{moved}.b32 w, ${index + 1}, {abs(shift)};")
        mask = _both(((1 << field.bits) - 1) << (place + field.low))
        lines.append(f"lop3.b32 x, w, {mask}, x, {_AND_OR:#x};")
    lines.append(f"mov.b32 s, {both(2.0 ** (exponent - place))};")
    lines.append(f"mov.b32 o, {both(-(2.0 ** (mantissa + exponent - place)))};")
    lines.append(f"fma.rn.{'bf16x2' if dtype == 'bfloat16' else 'f16x2'} $0, x, s, o;")
    return _pairs("{ .reg .b32 w, x, s, o; " + " ".join(lines) + " }", words, dtype)


def bits_from(words: Shaped[Array, "n c"], begin: Int[Array, "n"], interpret: bool) -> UInt16[Array, "n c"]:
    """Bits of uint16 or uint32 words from bit ``begin`` on, a multiple of 8; what is behind a word is undefined.

    On the device one selection of bytes makes two of the results.
    """
    begin = jnp.broadcast_to(begin[:, None], words.shape)
    if interpret:
        return (words.astype(jnp.uint32) >> begin.astype(jnp.uint32)).astype(jnp.uint16)
    wide = words.dtype == jnp.uint32
    # bytes of two words, the first in the lowest digit, and from there on as many bytes as `begin` has
    selection = (0x5410 if wide else 0x3210) + (begin >> 3) * 0x1111
    asm = "prmt.b32 $0, $1, $2, $3;" if wide else "prmt.b32 $0, $1, 0, $2;"
    # an unsigned result of inline assembly does not lower
    found = _pairs(asm, (words, selection), "int16", inputs="r,r,r,r" if wide else "r,r,r")
    return lax.bitcast_convert_type(found, jnp.uint16)


def multiply_add(
    a: Float[Array, "*n"], b: Float[Array, "*n"], c: Float[Array, "*n"], interpret: bool
) -> Float[Array, "*n"]:
    """``a * b + c`` of float16, rounded once."""
    if interpret:
        return (a.astype(jnp.float32) * b.astype(jnp.float32) + c.astype(jnp.float32)).astype(jnp.float16)
    return _pairs("fma.rn.f16x2 $0, $1, $2, $3;", (a, b, c), "float16")


def multiply(a: Float[Array, "*n"], b: Float[Array, "*n"], interpret: bool) -> Float[Array, "*n"]:
    """``a * b`` of float16."""
    return a * b if interpret else _pairs("mul.rn.f16x2 $0, $1, $2;", (a, b), "float16")


def add(a: Float[Array, "*n"], b: Float[Array, "*n"], interpret: bool) -> Float[Array, "*n"]:
    """``a + b`` of float16."""
    return a + b if interpret else _pairs("add.rn.f16x2 $0, $1, $2;", (a, b), "float16")


def to_half(x: Float[Array, "*n"], interpret: bool) -> Float[Array, "*n"]:
    """Rounds float32 to float16."""
    if interpret:
        return x.astype(jnp.float16)
    return _pairs("cvt.rn.f16x2.f32 $0, $2, $1;", (x,), "float16", inputs="r,r")


def nearest(x: Float[Array, "*n"], interpret: bool) -> Float[Array, "*n"]:
    """Nearest whole number of float32 below 2**22 in magnitude, ties to even."""
    if interpret:
        return jnp.round(x)
    shift = np.float32(1.5 * 2.0**23)  # a float32 of this size has no fraction; XLA would simplify it away
    return (x + shift) - shift


def cos_sin(x: Float[Array, "*n"], interpret: bool) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Cosine and sine of angles in -pi .. pi, absolute error 2^-20; on the device by its table."""
    if interpret:
        return jnp.cos(x), jnp.sin(x)
    cosine, sine = (
        pltriton.elementwise_inline_asm(
            f"{name}.approx.ftz.f32 $0, $1;",
            args=[x],
            constraints="=f,f",
            pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
        )[0]
        for name in ("cos", "sin")
    )
    return cosine, sine


def load(ref, *index, mask: Shaped[Array, "..."] | None = None) -> Shaped[Array, "..."]:
    """``ref[index]``; zeros where the mask is false, and nothing is read there."""
    if mask is None:
        return ref[index]
    return pltriton.load(ref.at[index], mask=mask, other=jnp.zeros((), ref.dtype))


def columns(ref, rows: tuple, first: Array | int, count: int, size: int) -> Shaped[Array, "n size"]:
    """``ref[*rows, first : first + count]``, filled up to ``size`` with zeros; some of ``rows`` are vectors of n."""
    channel = iota(size)
    index = [x[:, None] if jnp.ndim(x) else x for x in rows]
    n = max(jnp.size(x) for x in rows)
    mask = None if count == size else jnp.broadcast_to(channel[None, :] < count, (n, size))
    return load(ref, *index, (first + channel)[None, :], mask=mask)


def store(ref, *index, value: Shaped[Array, "..."], mask: Shaped[Array, "..."]) -> None:
    """``ref[index] = value`` where the mask is true."""
    pltriton.store(ref.at[index], value, mask=mask)


def dot(a: Float[Array, "m c"], b: Float[Array, "n c"]) -> Float[Array, "m n"]:
    """``a @ b.T`` with products summed in float32; operands of float32 are not rounded."""
    return pltriton.dot(a, b.T, precision=_precision(a))


def mix(a: Float[Array, "m n"], b: Float[Array, "n c"]) -> Float[Array, "m c"]:
    """``a @ b``, as `dot`."""
    return pltriton.dot(a, b, precision=_precision(a))


def _precision(a: Array) -> lax.Precision | None:
    return lax.Precision.HIGHEST if a.dtype == jnp.float32 else None


def iota(size: int) -> Int[Array, "size"]:
    """0, 1, .. as int32."""
    return jnp.arange(size, dtype=jnp.int32)


@functools.cache
def _both(half: int) -> str:
    return f"{half << 16 | half:#x}"


def _pairs(asm: str, args: tuple[Array, ...], dtype: str, inputs: str | None = None) -> Array:
    constraints = "=r," + (inputs or ",".join("r" for _ in args))
    [result] = pltriton.elementwise_inline_asm(
        asm,
        args=args,
        constraints=constraints,
        pack=2,
        result_shape_dtypes=[jax.ShapeDtypeStruct(args[0].shape, jnp.dtype(dtype))],
    )
    return result


def pallas_call(kernel, *, grid, out_shape, warps: int, stages: int, interpret: bool, name: str):
    """`pl.pallas_call` with arrays left where they are: a ref is a pointer to the whole array."""
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=out_shape,
        compiler_params=CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        name=name,
    )
