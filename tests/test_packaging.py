"""C62 and C63: it builds, installs and imports with nothing but Python and the packages it names.

The packages are built once per run from a copy of the tree, offline, with torch out of reach.
"""

import email
import re
import statistics
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from building import ROOT, copy_of_tree, python, run

import encoder_fast

SITE_PACKAGES = str(Path(pytest.__file__).resolve().parents[1])

# What a machine may lack, as code that runs first in a fresh process.
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)
sys.meta_path.insert(0, Block())
"""
NO_NETWORK = """
import socket
def refuse(*args, **kwargs):
    raise OSError("the network is off in this test")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""
CPU_FORWARD = """
import encoder_fast, torch
model = encoder_fast.from_config(dict(
    model_type="bert", vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
    intermediate_size=48, max_position_embeddings=42, type_vocab_size=2, pad_token_id=0,
))
out = model.eval()(torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
assert out.last_hidden_state.shape == (2, 3, 32)
assert out.last_hidden_state.isfinite().all()
for op, served in encoder_fast.backends(model).items():
    assert served["runs"], op
    assert all(isinstance(reason, str) for reason in served["why_not"].values()), (op, served)
assert not torch.cuda.is_initialized()
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, Path]:
    """An sdist from a copy of the tree, and a wheel from it, on a machine with no compiler."""
    work = tmp_path_factory.mktemp("build")
    tree = copy_of_tree(work / "tree")
    # sitecustomize runs before anything else in every Python that pip starts.
    blocked = work / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        BLOCK.format(names={"torch", "numpy", "triton"}) + NO_NETWORK
    )
    offline = {"PYTHONPATH": str(blocked), "PATH": "/nonexistent"}
    make_sdist = "from setuptools import build_meta; print(build_meta.build_sdist('../dist'))"
    (work / "dist").mkdir()
    sdist = work / "dist" / python(make_sdist, tree, **offline).splitlines()[-1]
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run([*wheel, "--no-index", "--wheel-dir", "dist", str(sdist)], work, **offline)
    [wheel_path] = (work / "dist").glob("*.whl")
    return {"sdist": sdist, "wheel": wheel_path}


def wheel_texts(wheel: Path, folder: str) -> dict[str, str]:
    """Name -> text of the files in the wheel's dist-info folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if folder in name]
        return {name.rsplit("/", 1)[-1]: archive.read(name).decode() for name in names}


def test_C62_wheel_without_a_compiler_is_pure_python_with_one_top_level_name(built):
    assert built["wheel"].name == f"encoder_fast-{encoder_fast.__version__}-py3-none-any.whl"
    info = wheel_texts(built["wheel"], ".dist-info/")
    assert info["top_level.txt"].split() == ["encoder_fast"]
    assert "encoder-fast = encoder_fast.cli:main" in info["entry_points.txt"]
    assert "Apache License" in info["LICENSE"]


def test_C62_wheel_holds_every_module_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {p.relative_to(ROOT).as_posix() for p in (ROOT / "encoder_fast").rglob("*.py")}
    kernels = {f"encoder_fast/kernels/{p.name}" for p in (ROOT / "kernels").glob("*.py")}
    assert "encoder_fast/architectures/bert.py" in shipped
    harness = {
        f"encoder_fast/{p.relative_to(ROOT).as_posix()}"
        for p in (ROOT / "benchmarks").rglob("*.py")
    }
    assert shipped == package | kernels | harness


def test_C62_sdist_can_be_tested(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"setup.py", "pyproject.toml", "Makefile", "requirements-dev.txt", "LICENSE"}
    wanted |= {"csrc/CMakeLists.txt", "csrc/cpu/dispatch.cpp", "csrc/cpu/tier.inl"}
    assert wanted | {"kernels/__init__.py", "tests/conftest.py"} <= names


def test_C62_requirements_at_run_time_are_few(built):
    metadata = email.message_from_string(wheel_texts(built["wheel"], ".dist-info/")["METADATA"])
    asked = metadata.get_all("Requires-Dist")
    needed = {re.split("[<>=]", line)[0] for line in asked if "extra ==" not in line}
    assert needed == {"torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "rich"}
    assert set(metadata.get_all("Provides-Extra")) == {"gpu", "hf", "train", "bench", "test"}
    assert metadata["Requires-Python"] == ">=3.10"


def test_C62_installs_imports_and_uninstalls_in_a_fresh_environment(built, tmp_path):
    run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], tmp_path)
    fresh = str(tmp_path / "venv" / "bin" / "python")
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", fresh]
    before = sorted(site.rglob("*"))

    run([*pip, "install", "--no-deps", "--no-index", str(built["wheel"])], tmp_path)
    # The requirements come from the environment of this test, behind the package under test.
    code = f"""
import sys
sys.path.append({SITE_PACKAGES!r})
import encoder_fast.kernels
print(encoder_fast.__file__, encoder_fast.kernels.__file__, encoder_fast.__version__)
"""
    assert run([fresh, "-c", code + CPU_FORWARD], tmp_path).count(str(site)) == 2
    assert (tmp_path / "venv" / "bin" / "encoder-fast").is_file()

    run([*pip, "uninstall", "--yes", "encoder-fast"], tmp_path)
    assert sorted(site.rglob("*")) == before
    assert not (tmp_path / "venv" / "bin" / "encoder-fast").exists()


def test_C63_runs_without_triton(tmp_path):
    python(BLOCK.format(names={"triton"}) + CPU_FORWARD, tmp_path)


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "OSError"])
def test_C63_runs_beside_a_triton_that_breaks_on_import(tmp_path, error):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(f"raise {error}('broken on purpose')\n")
    # torch is imported first: what torch does with a broken Triton is not what is tested.
    code = "import torch\n" + f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + CPU_FORWARD
    python(code, tmp_path)


def test_C63_runs_without_compiler_home_or_network(tmp_path):
    blocked_home = tmp_path / "file"
    blocked_home.write_text("a file: nothing can be made below it, not even by root")
    code = NO_NETWORK + "import shutil; assert not shutil.which('cc')\n" + CPU_FORWARD
    nowhere = str(blocked_home / "home")
    python(code, tmp_path, PATH="/nonexistent", HOME=nowhere, XDG_CACHE_HOME=nowhere)


def test_C63_runs_without_optional_packages(tmp_path):
    optional = {"triton", "transformers", "sentence_transformers", "pyarrow", "flash_attn"}
    python(BLOCK.format(names=optional) + CPU_FORWARD, tmp_path)


@pytest.mark.parametrize("arguments", [["--help"], ["embed", "--help"], ["doctor"]], ids=" ".join)
def test_C63_command_line_starts_without_compiler_or_triton(tmp_path, arguments):
    start = f"import sys; from encoder_fast.cli import main; sys.exit(main({arguments!r}))"
    python(BLOCK.format(names={"triton"}) + start, tmp_path, PATH="/nonexistent")


def test_C63_benchmark_help_needs_nothing_optional(tmp_path):
    script = str(ROOT / "benchmarks" / "run.py")
    start = f"import runpy; sys.argv = [{script!r}, '--help']; runpy.run_path({script!r}, "
    optional = {"triton", "transformers", "matplotlib", "onnxruntime", "openvino", "flash_attn"}
    code = BLOCK.format(names=optional) + f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
    assert "usage" in python(code + start + "run_name='__main__')", tmp_path, PATH="/nonexistent")


def test_import_is_quick_beside_torch(tmp_path):
    code = """
import time, torch
start = time.perf_counter()
import encoder_fast
print(time.perf_counter() - start)
"""
    seconds = [float(python(code, tmp_path)) for _ in range(5)]
    assert statistics.median(seconds) < 0.3, seconds


def test_import_loads_nothing_optional_and_no_gpu(tmp_path):
    loaded = python(
        "import encoder_fast, sys, torch; assert not torch.cuda.is_initialized();"
        "encoder_fast.load, encoder_fast.Batch, encoder_fast.TextEncoder;"
        "print(*{name.split('.')[0] for name in sys.modules})",
        tmp_path,
    ).split()
    optional = {"transformers", "sentence_transformers", "triton", "pyarrow", "matplotlib"}
    assert not optional & set(loaded)
    assert "kernels" not in loaded
