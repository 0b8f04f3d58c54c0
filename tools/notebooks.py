"""Runs the notebooks against the brokers that the environment names (by default those of `make brokers`).

    python -m tools.notebooks [--into FOLDER] [NOTEBOOK ...]

What they show is kept in them, without what a machine says of itself. Each runs in a kernel and a folder of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["NOTEBOOKS", "execute"]

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CELL_TIMEOUT_S = 200


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells show when they are run now.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; says which and how.
    """
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # The JVM names its host and its threads there; what fails raises.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("metadata", {}).clear()
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of them if none is named")
    parser.add_argument("--into", type=Path, default=NOTEBOOKS, help="where they are written to")
    asked = parser.parse_args()
    for path in asked.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(execute(path), asked.into / path.name)  # type: ignore[no-untyped-call]
        print(path.name)


if __name__ == "__main__":
    main()
