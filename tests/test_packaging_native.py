"""What ENCODER_FAST_BUILD makes of an install: with the native engine, without it, or an error."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from building import clean_environment, copy_of_tree, python, run


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return copy_of_tree(tmp_path_factory.mktemp("copy") / "tree")


def can_compile() -> bool:
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which("c++") is not None and headers.is_file()


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler, or no Python headers")
def test_C62_wheel_of_a_machine_with_a_compiler_holds_the_engine(tree, tmp_path):
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    # One tier and no optimisation: the contents of the wheel are what is tested.
    fast = "-DEF_TIERS=generic -DCMAKE_BUILD_TYPE=Debug"
    run(
        [*wheel, "--no-index", "-w", "dist", str(tree)],
        tmp_path,
        ENCODER_FAST_BUILD="cpu",
        CMAKE_ARGS=fast,
    )
    [path] = (tmp_path / "dist").glob("*.whl")
    assert not path.name.endswith("-any.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(path) as archive:
        [extension] = [name for name in archive.namelist() if not name.endswith(".py")][:1]
        archive.extractall(site)
    assert extension == f"encoder_fast/_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    code = f"import sys; sys.path[:0] = [{str(site)!r}]; from encoder_fast.kernels import _native;"
    said = python(code + "print(_native.tiers(), _native.__file__)", tmp_path)
    assert said.startswith("['generic']") and str(site) in said


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("cpu", "the native engine cannot be built"),
        ("fast", "ENCODER_FAST_BUILD is 'fast'; allowed: auto, none, cpu, cuda"),
        ("cuda", "there are no CUDA sources yet"),
    ],
)
def test_a_build_that_cannot_be_had_is_an_error(tree, mode, reason):
    environment = clean_environment(ENCODER_FAST_BUILD=mode, CXX=shutil.which("false"))
    command = [sys.executable, "setup.py", "build_ext"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and reason in done.stderr


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_build_without_the_engine_says_so_and_goes_on(tree, mode):
    old = tree / "encoder_fast" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    old.write_text("of an earlier build")
    environment = clean_environment(ENCODER_FAST_BUILD=mode, CXX=shutil.which("false"))
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("encoder_fast: without the native CPU engine: ") == 1
    assert not old.exists()
