# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from top to bottom, and is kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.smollm2 import INSTALL, packaged_file

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_outputs_are_stripped():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.slow
@pytest.mark.model
def test_it_runs(tmp_path):
    """With this interpreter; cells that install are left out."""
    if packaged_file() is None:
        pytest.skip(f"needs the packaged SmolLM2: {INSTALL}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", [])]
    # the kernel "python3" of an environment is its own interpreter
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=500, resources=where).execute()

    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in shown if output.output_type == "stream" and output.name == "stdout")
    megabytes = [float(line.split()[1]) for line in printed.splitlines() if "MB" in line]
    assert len(megabytes) == 4
    full, *budgets = megabytes
    for size, budget in zip(budgets, (0.3, 0.2, 0.1), strict=True):
        assert 0.5 * budget * full < size <= budget * full + 0.01
    pictures = [output for output in shown if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
