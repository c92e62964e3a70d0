"""The tutorial runs from its first cell to its last and prints what it shows."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


def printed(notebook):
    """Text that each code cell prints; pictures and warnings are left out."""
    return [
        "".join(out.text for out in cell.outputs if out.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(tmp_path):
    shown = nbformat.read(NOTEBOOK, as_version=4)
    run = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(run, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises at the first cell that fails
    assert printed(run) == printed(shown)
    assert "same bits as in one go: True\n" in printed(run)
