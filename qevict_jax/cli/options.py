# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, made from the fields of the records they fill.

A new field of `CacheConfig` or `Sampling` is an option of every command at once, with the help of its docstring.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from qevict_jax.config import POLICY_FIELDS, PRESETS, CacheConfig, idle_fields
from qevict_jax.mesh import MeshShape
from qevict_jax.policies import policy_options
from qevict_jax.sampling import Sampling
from qevict_jax.types import QEvictError


def _mesh_option(what: str, example: str) -> Any:
    help = f"Devices to spread {what} over, e.g. {example}; default one device."
    return typer.Option("--mesh", help=help, show_default=False)


MeshOption = Annotated[str | None, _mesh_option("rows and the model", "data=2,model=4")]
OneRowMesh = Annotated[str | None, _mesh_option("the model", "model=4")]


def cache_options(command: Callable) -> Callable:
    """Gives a command ``--preset`` and an option per field of `CacheConfig`; it receives the record as ``cache``."""
    return with_record(command, "cache", _cache_parameters(), cache_config)


def sweep_options(command: Callable) -> Callable:
    """The same without a budget; the command receives what was given as ``settings``, for `cache_config`."""
    options = [option for option in _cache_parameters() if option.name not in ("budget", "budget_bytes")]
    return with_record(command, "settings", options, lambda **given: _stated(given))


def sampling_options(command: Callable) -> Callable:
    """Gives a command an option per field of `Sampling`; it receives the record as ``sampling``."""
    return with_record(command, "sampling", _parameters(Sampling), lambda **given: Sampling(**_stated(given)))


def check_one_row(mesh: str | None) -> None:
    """Before anything is loaded: whether one sequence can take all of a mesh.

    Raises:
        QEvictError: it cannot, or the mesh is none.
    """
    if mesh is not None and (data := MeshShape.parse(mesh).data) > 1:
        raise QEvictError(f"mesh {mesh!r}: data={data} splits the rows of a batch, and this is one; leave data out")


def cache_config(preset: str = "tuned", **given: Any) -> CacheConfig:
    """A preset with the options that were given; None is an option that was not.

    Raises:
        QEvictError: a value is not allowed, or an option would have no effect.
    """
    if preset not in PRESETS:
        raise QEvictError(f"preset={preset!r} must be one of {', '.join(PRESETS)}")
    changes = _stated(given)
    policy = changes.get("policy", "qevict")
    if policy in POLICY_FIELDS:
        idle = [_flag(name) for name in idle_fields(policy, changes)]
        if preset != "tuned" and policy != "qevict":
            idle.insert(0, f"--preset {preset}")
        if idle:
            raise QEvictError(f"no effect with --policy {policy}: {', '.join(idle)}")
    config = PRESETS[preset](**changes)
    policy_options(config)
    return config


def field_help(record: type) -> dict[str, str]:
    """What the ``Attributes`` section of a record's docstring says about each field."""
    section = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(text.replace("``", "").split()) for name, text in zip(entries[::2], entries[1::2], strict=True)
    }


def _cache_parameters() -> list[inspect.Parameter]:
    preset = _parameter("preset", str, "tuned", f"The settings to start from: {' or '.join(PRESETS)}.", True)
    return [preset, *_parameters(CacheConfig, "that of the preset")]


def _parameters(record: type, default: str | None = None) -> list[inspect.Parameter]:
    texts = field_help(record)
    kinds: dict[str, Any] = {field.name: field.type for field in fields(record)}
    return [
        _parameter(field.name, kinds[field.name] | None, None, texts.get(field.name, ""), default or str(field.default))
        for field in fields(record)
    ]


def _parameter(name: str, kind: Any, default: Any, text: str, shown_default: str | bool) -> inspect.Parameter:
    option = typer.Option(_flag(name), help=text, show_default=shown_default)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def with_record(
    command: Callable, argument: str, options: list[inspect.Parameter], build: Callable[..., Any]
) -> Callable:
    """The command with ``argument`` replaced by the options that it is built from."""
    signature = inspect.signature(command)
    names = [option.name for option in options]

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        record = build(**{name: given.pop(name) for name in names})
        return command(**given, **{argument: record})

    kept = [parameter for name, parameter in signature.parameters.items() if name != argument]
    kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
    wrapped.__signature__ = signature.replace(parameters=kept + options)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in kept + options}
    del wrapped.__wrapped__  # or the signature of the command itself would be read
    return wrapped


def _stated(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
