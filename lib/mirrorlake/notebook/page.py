"""Runs a notebook, and makes one self-contained web page of it."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirrorlake.errors import KINDS, LedgerError, MirrorlakeError

TEMPLATES = Path(__file__).with_name("templates")


def make_page(notebook: Path, page: Path, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Runs a notebook by papermill, and writes its outputs as a page without scripts; returns the notebook's result.

    Args:
        notebook: the notebook.
        page: the file to write.
        parameters: values for its parameters cell.

    Raises:
        MirrorlakeError: the error that ended the notebook, of its kind.
    """
    import papermill
    from nbconvert import HTMLExporter
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, notebook.name)
        try:
            papermill.execute_notebook(notebook, output, dict(parameters), progress_bar=False)
        except PapermillExecutionError as error:
            raise KINDS.get(error.ename, LedgerError)(str(error.evalue)) from None
        exporter = HTMLExporter(
            template_name="report",
            extra_template_basedirs=[str(TEMPLATES)],
            exclude_input=True,
            exclude_input_prompt=True,
            exclude_output_prompt=True,
        )
        text, _ = exporter.from_filename(str(output), resources={"metadata": {"name": notebook.stem}})
        result = _result(json.loads(output.read_text()))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
    return result


def _result(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value that the cell with the tag `result` has printed."""
    for cell in notebook["cells"]:
        if "result" in cell["metadata"].get("tags", []):
            text = "".join("".join(output.get("text", "")) for output in cell["outputs"])
            found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
            return found
    raise MirrorlakeError("the notebook has no cell with the tag result")
