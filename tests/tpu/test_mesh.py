# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of a whole TPU slice, really compiled: what its chips tell each other, and that the cache stays in place."""

import json
import math
import re

import pytest

from tests.shapes import SHAPES
from tests.tpu.in_process import NEEDS_LIBTPU, run_module

pytestmark = NEEDS_LIBTPU

MODEL, TOTAL, BATCH = "llama-3.1-8b", 8192, 4
TUNED = {"preset": "tuned", "budget": 0.2}
SLICES = [(topology, mesh) for topology in ("v5e:2x4", "v6e:2x4") for mesh in ("data=2,model=4", "model=8")]


def compiled(topology: str, mesh: str, *programs: str) -> dict[str, dict]:
    """What `compile_mesh` finds, by program."""
    asked = {"model": MODEL, "topology": topology, "mesh": mesh, "programs": programs, "cache": TUNED}
    lines = run_module("tests.tpu.compile_mesh", json.dumps(asked | {"total": TOTAL, "batch": BATCH}))
    return {found["program"]: found for found in lines}


def elements(collective: dict) -> list[int]:
    """Sizes of what is sent."""
    return [math.prod(map(int, re.findall(r"\d+", kind.partition("[")[2]))) for kind in collective["types"]]


@pytest.mark.parametrize(("topology", "mesh"), SLICES)
def test_what_chips_tell_each_other(topology: str, mesh: str):
    data, model = (2, 4) if "data" in mesh else (1, 8)
    rows, config = BATCH // data, SHAPES[MODEL]
    found = compiled(topology, mesh, "token", "event")
    print(found)

    # a layer: the sums after attention and MLP; around the layers: the embedding, and the logits
    step = found["token"]["collectives"]
    assert [(x["kind"], x["loops"]) for x in step] == [
        ("all-reduce", 1),
        ("all-reduce", 1),
        ("all-reduce", 0),
        ("all-gather", 0),
    ]
    assert all(x["over"] == model for x in step)
    assert [size for x in step for size in elements(x)] == [rows * config.hidden] * 3 + [rows * config.vocab]

    # an event: one mean over the heads of the scores of all layers, and nothing in its loop over layers
    (mean,) = found["event"]["collectives"]
    assert (mean["kind"], mean["over"], mean["loops"]) == ("all-reduce", model, 0)
    assert all(kind.startswith(f"f32[{config.layers},{rows},") for kind in mean["types"])

    assert found["token"]["kernels"] == 1
    for program in found.values():
        assert program["tier_copies"] == {}
        assert program["cache_bytes"] == program["plan_bytes"] <= program["alias_bytes"]


def test_prompts_and_blocks():
    """A prompt is read with the same kernels; devices that have other rows only agree on when a block ends."""
    found = compiled("v5e:2x4", "data=2,model=4", "read", "block")
    print(found)
    assert found["read"]["kernels"] >= 2  # attention and start scores
    assert {x["over"] for x in found["read"]["collectives"]} == {4}
    across = [x for x in found["block"]["collectives"] if x["over"] == 2]
    assert [(x["kind"], x["types"], x["loops"]) for x in across] == [("all-reduce", ["s32[]"], 0)]
