# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict plan`: for named shapes and for directories, and what it says about devices."""

import json
import math

import pytest

from qevict_jax.cli.devices import DEVICES, largest
from qevict_jax.config import CacheConfig
from qevict_jax.models.config import NAMED_SHAPES
from qevict_jax.models.key_map import expected_tensors
from qevict_jax.policies import plan_cache
from tests.tiny_models import write_hf


def planned(qevict, *arguments):
    result = qevict("plan", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMED_SHAPES)
def test_a_named_shape(qevict, name):
    document = planned(qevict, name, "--context", 8192)
    plan = plan_cache(NAMED_SHAPES[name].kv_shape(), CacheConfig(), 8192)
    assert document["kv_bytes"] == plan.kv_bytes == sum(document["parts"].values())
    assert document["full_kv_bytes"] == plan.full_kv_bytes
    assert document["ratio"] <= 0.2


def test_weights_of_llama_8b_are_those_of_its_published_size():
    count = sum(map(math.prod, expected_tensors(NAMED_SHAPES["llama-3.1-8b"]).values()))
    assert count == 8_030_261_248


def test_8b_weights_do_not_fit_a_v5e(qevict):
    result = qevict("plan", "llama-3.1-8b", "--json")
    assert "TPU v5e: weights of 16.06 GB do not fit" in " ".join(result.stdout.split())
    assert json.loads(result.stdout.splitlines()[-1])["devices"]["TPU v5e"] is None


def test_what_fits_fits_and_one_more_does_not(qevict):
    context, batch, config = 4096, 3, NAMED_SHAPES["qwen2.5-7b"]
    document = planned(qevict, "qwen2.5-7b", "--context", context, "--batch", batch, "--margin", "0.2")
    for device in DEVICES[1:]:
        room = int(device.memory * 0.8) - document["weight_bytes"]
        for key, cache in (("cache", CacheConfig()), ("full", CacheConfig.full())):
            found = document["devices"][device.name][key]

            def row(length, cache=cache, multiple=device.slot_multiple):
                return plan_cache(config.kv_shape(), cache, length, slot_multiple=multiple).kv_bytes

            assert batch * row(found["longest_context"]) <= room < batch * row(found["longest_context"] + 64)
            assert found["largest_batch"] * row(context) <= room < (found["largest_batch"] + 1) * row(context)


def test_a_directory_and_its_checkpoint_have_one_plan(qevict, checkpoint, tmp_path):
    source = write_hf(tmp_path, "llama")
    (source / "model.safetensors").unlink()
    keys = ("kv_bytes", "full_kv_bytes", "weight_bytes", "parts")
    one, two = (planned(qevict, path, "--context", 512) for path in (source, checkpoint))
    assert [one[key] for key in keys] == [two[key] for key in keys]


def test_bisection():
    assert [largest(lambda n, most=most: n <= most, 100) for most in (0, 1, 63, 100, 500)] == [0, 1, 63, 100, 100]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["llama-9"], "llama-3.1-8b"),
        (["EMPTY"], "config.json"),
        (["FILE"], "FILE"),
        (["llama-3.1-8b", "--batch", "0"], "batch=0"),
        (["llama-3.1-8b", "--margin", "1"], "margin=1"),
        (["llama-3.1-8b", "--context", "0"], "total_len=0"),
        (["llama-3.1-8b", "--context", "64"], "the smallest budget that works"),
        (["llama-3.1-8b", "--kv-dtype", "int8"], "kv_dtype='int8'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(refused, tmp_path, arguments, message):
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "FILE").write_bytes(b"\x00\x01binary")
    paths = {name: str(tmp_path / name) for name in ("EMPTY", "FILE")}
    assert message in refused("plan", *(paths.get(argument, argument) for argument in arguments))


def test_a_mesh(qevict):
    one = planned(qevict, "llama-3.1-8b", "--context", 8192, "--batch", 4)
    many = planned(qevict, "llama-3.1-8b", "--context", 8192, "--batch", 4, "--mesh", "data=2,model=8")
    assert one["kv_bytes_per_device"] == 4 * one["kv_bytes"] and one["weight_bytes_per_device"] == one["weight_bytes"]
    assert many["kv_bytes_per_device"] == 4 * many["kv_bytes"] // 16
    # norms are on every device, all else on one of eight
    norms = 2 * (2 * 32 + 1) * 4096
    assert many["weight_bytes_per_device"] == norms + (many["weight_bytes"] - norms) // 8
    for arguments, message in (
        (("--mesh", "model=8", "--policy", "adakv"), "its heads compete for one budget"),
        (("--mesh", "model=3"), "8 KV heads do not go evenly onto model=3"),
        (("--mesh", "data=3"), "batch=1 does not go evenly onto mesh data=3,model=1"),
    ):
        result = qevict("plan", "llama-3.1-8b", *arguments)
        assert result.exit_code == 1 and message in result.stderr


def test_heads_that_several_devices_hold_are_counted_on_each(qevict):
    """8 KV heads on 16 devices: two copies of keys and values, of the full cache too."""
    one = planned(qevict, "llama-3.1-8b", "--context", 8192, "--policy", "full")
    many = planned(qevict, "llama-3.1-8b", "--context", 8192, "--policy", "full", "--mesh", "model=16")
    assert many["full_kv_bytes"] == 2 * one["full_kv_bytes"]
