"""Run the notebooks with the brokers named in the environment (by default those of `make brokers`).

    python -m tools.notebooks [--into FOLDER] [NOTEBOOK ...]

Stores their outputs in them, without data about the machine, and the plot of the dashboard in docs/images. Each runs
in its own kernel and folder.
"""

from __future__ import annotations

import argparse
import base64
import io
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

__all__ = ["NOTEBOOKS", "execute"]

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
DASHBOARD = "2_streaming_dashboard.ipynb"
PICTURE = NOTEBOOKS.parent / "docs" / "images" / "dashboard.png"
CELL_TIMEOUT_S = 200


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook; return it with new outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
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
            # stderr contains the JVM's host and threads; failures raise.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("metadata", {}).clear()
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def smaller(png: str) -> str:
    """Return a picture (base64) with 128 colours, which takes a third of the bytes and looks the same for a plot."""
    into = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(128).save(into, "PNG", optimize=True)
    return base64.b64encode(into.getvalue()).decode()


def picture(notebook: nbformat.NotebookNode) -> str:
    """Return the last picture among the outputs, as base64."""
    outputs = (output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))
    return [str(data["image/png"]) for data in outputs if "image/png" in data][-1]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all notebooks")
    parser.add_argument("--into", type=Path, default=NOTEBOOKS, help="output folder")
    asked = parser.parse_args()
    for path in asked.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = execute(path)
        nbformat.write(notebook, asked.into / path.name)  # type: ignore[no-untyped-call]
        if path.name == DASHBOARD and asked.into == NOTEBOOKS:
            PICTURE.write_bytes(base64.b64decode(picture(notebook)))
        print(path.name)


if __name__ == "__main__":
    main()
