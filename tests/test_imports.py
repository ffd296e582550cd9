# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Imports go one way. Read from the source, so that an import inside a function counts too."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("qevict_jax", "pallas_kernels", "convert")

# a module may import from its own stage and from those above it
STAGES = [
    ["version"],
    ["types"],
    ["checks"],
    ["config", "head_split"],
    ["mesh"],
    ["quant"],
    ["cache"],
    ["plan"],
    ["ranking"],
    ["routing"],
    ["windows"],
    ["event", "admission"],
    ["quantizers"],
    ["attention", "coded_attention", "token_scores", "token_selection", "value_norms"],
    ["policies"],
    ["models"],
    ["questions", "rows", "sampling", "stop", "interrupts", "decode_state", "sharded_programs", "decoding"],
    ["engine", "reply", "result", "generate", "session"],
    ["evaluation", "diagnostics", "calibration", "fisher"],
    ["server"],
    ["cli"],
]
STAGE = {name: stage for stage, names in enumerate(STAGES) for name in names}
# who works with stored arrays or with their layout, or turns keys
KERNEL_USERS = {
    "config", "quant", "cache", "plan", "windows", "event", "admission", "attention", "quantizers", "coded_attention",
    "policies", "models", "evaluation", "diagnostics", "calibration", "fisher",
}  # fmt: skip
NEVER = {"torch", "tensorflow"}  # the library runs without them
TESTS_ONLY = {"transformers", "pytest", "chex", "hypothesis", "beartype", "tests"}


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports; of ``from a import b`` both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def stage(module: str) -> int:
    """Stage of a module of the library; the package itself gathers everything but the command line."""
    parts = module.split(".")
    return STAGE["evaluation"] if len(parts) == 1 else STAGE[parts[1]]


def test_every_module_has_a_stage():
    names = {name.split(".")[1] for name in MODULES if name.startswith("qevict_jax.")}
    assert names == set(STAGE)


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("qevict_jax")])
def test_the_library_imports_what_stands_above(module):
    for name in imports(MODULES[module]):
        if name.startswith("qevict_jax") and name in MODULES and name != "qevict_jax":
            assert stage(name) <= stage(module), f"{module} imports {name}"
        if name.startswith("pallas_kernels"):
            assert module.split(".")[1] in KERNEL_USERS, f"{module} imports {name}"
        if name.startswith("convert"):
            assert module.startswith("qevict_jax.cli"), f"{module} imports {name}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("pallas_kernels")])
def test_kernels_know_nothing_of_the_library(module):
    for name in imports(MODULES[module]):
        assert name.split(".")[0] not in {"qevict_jax", "convert", "flax", "orbax"}, f"{module} imports {name}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("convert")])
def test_conversion_uses_types_and_models(module):
    for name in imports(MODULES[module]):
        if name.startswith("qevict_jax."):
            assert name.split(".")[1] in {"types", "models", "version"}, f"{module} imports {name}"
        assert not name.startswith("pallas_kernels")


@pytest.mark.parametrize("module", MODULES)
def test_nothing_private_of_others_and_nothing_of_torch(module):
    for name in imports(MODULES[module]):
        first, *rest = name.split(".")
        assert first not in NEVER | TESTS_ONLY, f"{module} imports {name}"
        if first in {"jax", "jaxlib", "flax", "orbax", "numpy", "safetensors", "tokenizers"}:
            private = [part for part in rest if part.startswith("_")]
            assert not private, f"{module} imports {name}"


def test_no_cycles():
    graph = {}
    for module, path in MODULES.items():
        graph[module] = {name for name in imports(path) if name in MODULES and name != module}
        # a package that gathers its own modules is no cycle
        graph[module] -= {parent for parent in graph[module] if module.startswith(parent + ".")}
    list(graphlib.TopologicalSorter(graph).static_order())
