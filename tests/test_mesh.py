# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What ``--mesh`` says. What meshes do: `tests/eight_devices`."""

import pytest

from qevict_jax import QEvictError
from qevict_jax.mesh import MeshShape


def test_axes_by_name():
    assert MeshShape.parse("data=2,model=4") == MeshShape(2, 4)
    assert MeshShape.parse(" model = 8 ") == MeshShape(1, 8)
    assert str(MeshShape(2, 4)) == "data=2,model=4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=2,heads=4", "no axis 'heads'; there are data and model"),
        ("data=0", "'data=0' is no axis and size"),
        ("8", "write e.g. data=2,model=4"),
        ("", "write e.g."),
        ("model=2,model=2", "model is there twice"),
    ],
)
def test_what_is_no_mesh(text, message):
    with pytest.raises(QEvictError, match=message):
        MeshShape.parse(text)
