"""The notebooks run from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs/notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first-encoder", "what-it-knows"])
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()


def test_every_notebook_is_tested_and_has_no_errors_or_paths_in_it():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == ["first-encoder", "what-it-knows"]
    for path in FOLDER.glob("*.ipynb"):
        outputs = [o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", ())]
        assert outputs, "kept as they were run"
        assert not [output for output in outputs if output.output_type == "error"]
        text = str([output for output in outputs if output.output_type == "stream"])
        assert "/tmp" not in text
        assert "/home" not in text
