# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU kernel of decode attention, interpreted, against the XLA form over the whole table of shapes.

Tolerance: a turned query, a scale or offset, a cosine, their product, and a turned key twice are rounded to float16:
six independent errors of at most 2^-12 in each product of a score, of which six standard deviations are allowed. A
weight is then off by twice the error of a score, and is rounded to bfloat16 before it meets values.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.packing import BITS, WINDOWS, pack
from pallas_kernels.quantized_windows import dequantize
from pallas_kernels.tiered_decode_attention import arg_specs, base, gpu_triton, pallas_gpu
from pallas_kernels.tiered_decode_attention.arg_specs import SPECS
from pallas_kernels.tiered_decode_attention.gpu_angles import cos_sin
from pallas_kernels.tiered_decode_attention.gpu_quantized import Group, Place, Shape, code_words, token_codes
from tests.quick_compile import QUICK

PRODUCT = 6 * (6 / 3) ** 0.5 * 2.0**-12  # a uniform error of at most e has a standard deviation of e / sqrt(3)
WEIGHT = 2.0**-9
# the interpreted kernel is thousands of operations; the option, which halves the time, went with JAX 0.11
OPTIONS = QUICK | ({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {})
FLOOR = 2e-6  # what float32 adds


@cache
def results(name: str) -> tuple:
    """Arguments, and output and mass of the kernel and of the XLA form."""
    spec = SPECS[name]
    args, static = arg_specs.random_args(spec), arg_specs.static_args(spec)
    forms = partial(pallas_gpu.tiered_decode_attention, interpret=True), base.tiered_decode_attention
    both = [jax.device_get(jax.jit(partial(form, **static), compiler_options=OPTIONS)(*args)) for form in forms]
    return jax.device_get(args), *both


def score_error(name: str) -> tuple[float, float]:
    """Error allowed in a score, in nats, and the largest value."""
    spec, (args, _, _) = SPECS[name], results(name)
    q, tiers, key_bias = args[0], args[3], args[6]
    if not spec.Q or spec.empty:
        return 0.0, 4.0
    stored = jax.tree.map(lambda x: jnp.asarray(x[spec.layer]), tiers.quantized)
    attended = np.asarray(tiers.quantized_starts >= 0)[..., None, None, None]
    keys, values = (
        np.where(attended, x, 0.0) for x in dequantize(stored, kv_heads=spec.K, bits=spec.bits, window=spec.W)
    )
    if key_bias is not None:
        keys = keys + key_bias
    low, high = np.split(keys, 2, axis=-1)
    size = np.sqrt(low**2 + high**2).max(axis=(1, 2))  # [B, K, D/2], of the pair that turns together
    low, high = np.split(q.reshape(spec.B, spec.T, spec.K, spec.G, spec.D), 2, axis=-1)
    products = np.sqrt(low**2 + high**2).max(axis=(1, 3)) * size
    return PRODUCT * np.sqrt((products**2).sum(axis=-1).max() / spec.D), np.abs(values).max()


@pytest.mark.parametrize("name", SPECS)
def test_output(name):
    (_, _, q_valid, *_), (out, _), (wanted, _) = results(name)
    assert out.dtype == np.float32 and out.shape == wanted.shape
    error, size = score_error(name)
    limit = FLOOR + (np.expm1(2 * error) + WEIGHT) * size
    np.testing.assert_allclose(out[q_valid], wanted[q_valid], rtol=0, atol=limit)


@pytest.mark.parametrize("name", SPECS)
def test_mass(name):
    """Of every window; all of it together is the number of valid queries, or nothing where nothing is seen."""
    (_, _, q_valid, *_), (_, mass), (_, wanted) = results(name)
    limit = np.expm1(2 * score_error(name)[0])
    for tier, received, expected in zip(mass._fields, mass, wanted, strict=True):
        assert (received is None) == (expected is None)
        if received is not None:
            np.testing.assert_allclose(received, expected, rtol=limit, atol=FLOOR * q_valid.shape[1], err_msg=tier)
    total = sum(x.reshape(x.shape[0], -1).sum(axis=1) for x in jax.tree.leaves(mass))
    queries = q_valid.sum(axis=1) * (not SPECS[name].empty)
    np.testing.assert_allclose(total, queries, rtol=1e-5, atol=1e-6)


def select_bytes(low: np.ndarray, high: np.ndarray, selection: np.ndarray) -> np.ndarray:
    """PTX ``prmt.b32``: each hexadecimal digit of the selection names one of eight bytes, or its sign."""
    pool = np.stack([low >> 8 * i & 0xFF for i in range(4)] + [high >> 8 * i & 0xFF for i in range(4)])
    found = np.zeros_like(low)
    for i in range(4):
        digit = selection >> 4 * i & 0xF
        byte = np.take_along_axis(pool, (digit & 7)[None].astype(np.int64), axis=0)[0]
        found |= np.where(digit & 8, (byte >> 7) * 0xFF, byte).astype(np.uint32) << 8 * i
    return found


def run_pairs(asm: str, *, args, constraints: str, pack: int, result_shape_dtypes) -> list:
    """PTX of `gpu_triton.decode` and `bits_from` on pairs of words, in NumPy."""
    assert pack == 2
    dtype = result_shape_dtypes[0].dtype
    operands = []
    for x in args:
        flat = np.ravel(np.asarray(x))
        operands += [flat.view(np.uint32)] if flat.itemsize == 2 else [flat[0::2], flat[1::2]]
    assert constraints.split(",") == ["=r"] + ["r"] * len(operands)
    registers = {f"${i + 1}": x.astype(np.uint32) for i, x in enumerate(operands)}

    def read(operand: str):
        return registers[operand] if operand in registers else np.full_like(registers["$1"], int(operand, 0))

    def halves(operand: str):
        return read(operand).view(dtype).astype(np.float32)

    for line in asm.strip("{} ;").split(";"):
        name, target, *sources = line.replace(",", " ").split()
        if name == ".reg":
            continue
        if name == "mov.b32":
            registers[target] = read(sources[0])
        elif name in ("shl.b32", "shr.b32"):
            value, count = read(sources[0]), read(sources[1])
            registers[target] = value << count if name == "shl.b32" else value >> count
        elif name == "prmt.b32":
            registers[target] = select_bytes(*(read(x) for x in sources))
        elif name == "lop3.b32":
            a, b, c = (read(x) for x in sources[:3])
            table = int(sources[3], 0)
            found = np.uint32(0)
            for i in range(8):
                if table >> i & 1:
                    found = found | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
            registers[target] = found
        else:
            assert name == {"float16": "fma.rn.f16x2", "bfloat16": "fma.rn.bf16x2"}[np.dtype(dtype).name]
            a, b, c = (halves(x) for x in sources)
            registers[target] = (a * b + c).astype(dtype).view(np.uint32)
    return [jnp.asarray(registers["$0"].view(dtype).reshape(args[0].shape))]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("bits", BITS)
def test_codes(bits, window, dtype, monkeypatch):
    """Exact, as JAX and as PTX: interpret mode runs only the first."""
    monkeypatch.setattr(gpu_triton.pltriton, "elementwise_inline_asm", run_pairs)
    codes = np.random.default_rng(0).integers(0, 1 << bits, (4, window, 16))
    packed = [x.reshape(1, 1, 4, -1) for x in pack(jnp.asarray(codes), bits)]
    for interpret in (True, False):
        shape = Shape(kv_heads=1, head_dim=8, window=window, bits=bits, rows=16, interpret=interpret)
        for t in range(window):
            index, within = divmod(t, shape.group)
            group = Group(jnp.int32(index), None if shape.groups == 1 else jnp.full(4, index * shape.group))
            words = code_words(packed, Place(0, 0, 0), jnp.arange(4), group, 0, 16, 16, shape)
            found = token_codes(words, within, dtype, shape)
            np.testing.assert_array_equal(np.float32(found), codes[:, t])


def test_cos_sin():
    """To 1e-5 at all positions, of the angle in float32."""
    positions = np.array([0, 1, 100, 3_001, 32_767, 131_071, 400_000])
    inv_freq = arg_specs.inverse_frequencies(arg_specs.MODEL_SPECS["llama_tuned"])
    angles = np.float64(np.float32(positions)[:, None] * inv_freq)
    cos, sin = jax.jit(partial(cos_sin, interpret=True))(jnp.asarray(positions), jnp.asarray(inv_freq))
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=1e-5)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=1e-5)


def test_a_stack_too_large_for_32_bit_offsets_is_refused():
    args = list(arg_specs.abstract_args(arg_specs.MODEL_SPECS["llama_tuned"]))
    codes = args[3].quantized.codes
    large = jax.ShapeDtypeStruct((32, 16, 3056, codes[1].shape[-1]), codes[1].dtype)
    args[3] = args[3]._replace(quantized=args[3].quantized._replace(codes=(codes[0], large)))
    assert pallas_gpu.unsupported(args[3]).endswith("too many elements for 32-bit offsets")
    spec = arg_specs.MODEL_SPECS["llama_tuned"]
    with pytest.raises(ValueError, match="32-bit offsets"):
        jax.eval_shape(partial(pallas_gpu.tiered_decode_attention, **arg_specs.static_args(spec)), *args)
