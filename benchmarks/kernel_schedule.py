# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What the decode attention kernel costs per window and KV head on a chip that is not there, from its machine code.

    python -m benchmarks.kernel_schedule --device v5e --bits 2 --window 8
    python -m benchmarks.kernel_schedule --device v6e --bits 3 --param-bits 8 --window 16 --bias
    python -m benchmarks.kernel_schedule --device sm_90 --bits 2 --window 8

Prints one JSON line. On a TPU its ``bundles_per_window`` counts the whole kernel for one sequence: sinks and ring, all
blocks, merges, output and masses (`benchmarks.tpu_schedule` says how), beside the cycles in which the chip reads the
same window in bfloat16 from HBM; needs libtpu (extra ``tpu``). On a GPU its ``instructions_per_window`` counts the
loop over quantized windows (`benchmarks.gpu_schedule`); needs triton (extra ``gpu-compile``).
"""

import argparse
import json

from benchmarks import gpu_schedule, tpu_schedule
from pallas_kernels.tiered_decode_attention.arg_specs import DecodeSpec

_CONTEXT = 32_768  # tokens of the row that is counted


def main() -> None:
    """Parses the command line and prints the measurement."""
    parser = argparse.ArgumentParser(description="Cost of the decode kernel from its machine code.")
    parser.add_argument("--device", required=True, choices=[*tpu_schedule.CHIPS, *gpu_schedule.CHIPS])
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--param-bits", type=int, default=16)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="query heads of a KV head")
    parser.add_argument("--query-tokens", type=int, default=1)
    parser.add_argument("--windows", type=int, help="quantized windows; default: all of a row of 32,768 tokens")
    parser.add_argument("--full-windows", type=int, default=0)
    parser.add_argument("--bias", action="store_true", help="the key projection has a bias")
    args = parser.parse_args()
    spec = DecodeSpec(
        D=args.head_dim,
        K=args.kv_heads,
        G=args.groups,
        T=args.query_tokens,
        W=args.window,
        F=args.full_windows,
        Q=args.windows or _CONTEXT // args.window,
        L=2,
        B=1,
        bits=args.bits,
        param_bits=args.param_bits,
        ring_windows=-(-40 // args.window),
        sink=5,
        padding=3,
        scalar_row=-(-args.kv_heads * (2 * args.window + 4 * (args.param_bits == 8)) // 128) * 128,
        bias=float(args.bias),
        kv_dtype="bfloat16",
    )
    schedule = gpu_schedule if args.device in gpu_schedule.CHIPS else tpu_schedule
    print(json.dumps(schedule.measure(args.device, spec)))


if __name__ == "__main__":
    main()
