# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""QEvict in JAX: long-context language models in a fraction of the KV-cache memory."""

from qevict_jax.types import KVShape as KVShape
from qevict_jax.types import QEvictError as QEvictError
from qevict_jax.version import __version__ as __version__
