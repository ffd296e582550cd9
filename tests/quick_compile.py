# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Options of ``jax.jit`` for tests of many programs: the same graph as ever, with less work by LLVM, faster."""

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
