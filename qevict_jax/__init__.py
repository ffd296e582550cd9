# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""QEvict in JAX: long-context language models in a fraction of the KV-cache memory."""

from qevict_jax.config import CacheConfig as CacheConfig
from qevict_jax.engine import Engine as Engine
from qevict_jax.engine import Request as Request
from qevict_jax.generate import Result as Result
from qevict_jax.generate import generate as generate
from qevict_jax.generate import stream as stream
from qevict_jax.models import LanguageModel as LanguageModel
from qevict_jax.models import load_model as load
from qevict_jax.plan import CachePlan as CachePlan
from qevict_jax.policies import plan_cache as plan_cache
from qevict_jax.sampling import Sampling as Sampling
from qevict_jax.session import Session as Session
from qevict_jax.types import KVShape as KVShape
from qevict_jax.types import QEvictError as QEvictError
from qevict_jax.version import __version__ as __version__

__all__ = [
    "CacheConfig",
    "CachePlan",
    "Engine",
    "KVShape",
    "LanguageModel",
    "QEvictError",
    "Request",
    "Result",
    "Sampling",
    "Session",
    "generate",
    "load",
    "plan_cache",
    "stream",
]
