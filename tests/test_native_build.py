"""The native engine as a part of the install: which tier runs, what is said without it, its tests.

What its kernels compute is tested by test_native_*.py; `make sanitize` runs more of the program
that the last test here runs for a moment.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_harness import needs_engine

from encoder_fast.kernels import _native

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in {".cpp", ".h", ".inl"})
MODEL = """
import encoder_fast, torch, warnings
config = dict(
    model_type="bert", vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
    intermediate_size=48, max_position_embeddings=42, type_vocab_size=2, pad_token_id=0,
)
"""

WITHOUT_ENGINE = """
import sys
sys.modules["encoder_fast._C"] = None
"""


def python(code: str, cwd: Path, **environment: str) -> str:
    """What a fresh process prints."""
    lines = [f"import os; os.environ.update({environment!r})", code]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_engine
def test_tiers_are_listed_chosen_and_refused():
    names = _native.tiers()
    by_itself = [name for name in names if name != "amx_emulated"]
    assert by_itself[-1] == "generic" and _native.tier() in names
    before = _native.tier()
    for name in names:
        with _native.use_tier(name):
            assert _native.tier() == name
    assert _native.tier() == before
    with (
        pytest.raises(ValueError, match=r"tier: got 'sse9', this machine can run .*'generic'"),
        _native.use_tier("sse9"),
    ):
        pass


@needs_engine
def test_the_environment_forces_a_tier(tmp_path):
    code = MODEL + "from encoder_fast.kernels import _native; print(_native.tier())"
    assert python(code, tmp_path).strip() == _native.tiers()[0]
    assert python(code, tmp_path, ENCODER_FAST_CPU_ISA="generic").strip() == "generic"


@needs_engine
def test_a_tier_that_cannot_run_is_refused_when_a_model_is_built(tmp_path):
    code = MODEL + "try: encoder_fast.from_config(config)\nexcept ValueError as e: print(e)"
    said = python(code, tmp_path, ENCODER_FAST_CPU_ISA="sse9")
    assert re.match("ENCODER_FAST_CPU_ISA: got 'sse9', this machine can run .*'generic'", said)


@needs_engine
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_one_openmp_library_serves_torch_and_the_engine(tmp_path):
    """Two would have two pools of threads, waiting for each other's cores."""
    mapped = "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'gomp' in line})"
    before = python("import torch;" + mapped, tmp_path).split()
    if not before:
        pytest.skip("this torch has another OpenMP library")
    assert python(MODEL + mapped, tmp_path).split() == before


def test_without_the_engine_models_run_and_one_warning_says_so(tmp_path):
    code = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    models = [encoder_fast.from_config(config) for _ in range(2)]
    models[0].eval()(torch.tensor([[3, 4]]), torch.tensor([[1, 1]]))
print(sum("native CPU engine" in str(w.message) for w in caught))
print(encoder_fast.backends(models[0])["attention"]["why_not"]["native"])
"""
    count, reason = python(WITHOUT_ENGINE + MODEL + code, tmp_path).splitlines()
    assert count == "1"
    assert "installed without its native CPU engine" in reason and "compiler" in reason


@pytest.mark.parametrize(
    ("fake", "problem"),
    [
        ("module.__version__ = '0.0.0'", "encoder_fast._C is of version 0.0.0, the rest of"),
        ("pass", "encoder_fast._C is of version unknown"),
        ("module = None", "installed without its native CPU engine"),
    ],
)
def test_an_engine_that_does_not_match_is_not_used(tmp_path, fake, problem):
    code = f"""
import sys, types
module = types.ModuleType("encoder_fast._C")
{fake}
sys.modules["encoder_fast._C"] = module
from encoder_fast.kernels import _native
assert _native.C is None and _native.tiers() == [] and _native.tier() is None
print(_native.missing)
"""
    assert problem in python(code, tmp_path)


def test_doctor_says_how_to_get_the_engine(tmp_path):
    code = """
from encoder_fast.commands import doctor
print([row for row in doctor.collect()["missing"] if row["what"] == "encoder_fast._C"])
"""
    said = python(WITHOUT_ENGINE + code, tmp_path)
    assert "installed without its native CPU engine" in said and "ENCODER_FAST_BUILD=cpu" in said


def test_every_source_is_built():
    lists = [CSRC / "CMakeLists.txt", CSRC / "sanitize" / "sanitize.cmake"]
    text = "".join(path.read_text() for path in lists)
    named = {name for name in re.findall(r"[a-z_0-9/]+\.cpp", text)}
    named |= {f"cpu/tier_{name}.cpp" for name in re.findall(r"ef_tier\((\w+)", text)}
    found = {p.relative_to(CSRC).as_posix() for p in SOURCES if p.suffix == ".cpp"}
    assert found <= named, f"not in CMakeLists.txt: {sorted(found - named)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(CSRC).as_posix())
def test_native_sources_keep_the_rules(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 400, f"{len(lines)} lines, the limit is 400"
    wide = [i for i, line in enumerate(lines, 1) if len(line) > 120]
    assert not wide, f"lines over 120 characters: {wide}"
    if path.parent.name == "cpu" and path.name not in {"dispatch.h", "dispatch.cpp"}:
        # The linker may keep a tier's copy of an inline library function for everybody, with
        # instructions that not every machine has.
        included = {m[1] for line in lines if (m := re.match(r"#include <(.+)>", line))}
        assert included <= {"immintrin.h", "math.h", "stddef.h", "stdint.h", "string.h"}


def test_the_engine_is_clean_under_sanitizers(tmp_path):
    """A few random cases of one tier; kept in build/, so that only changes are compiled."""
    tools = [shutil.which(name) for name in ("g++", "cmake", "ninja")]
    if None in tools:
        pytest.skip("needs g++, cmake and ninja")
    probe = ["g++", "-fsanitize=address,undefined", "-x", "c++", "-", "-o", str(tmp_path / "probe")]
    if subprocess.run(probe, input="int main() {}", text=True, capture_output=True).returncode:
        pytest.skip("this g++ has no sanitizers")
    build, seed = str(ROOT / "build" / "sanitize-test"), str(torch.randint(1000, ()).item())
    options = ["-DCMAKE_CXX_COMPILER=g++", "-DEF_SANITIZE=address,undefined", "-DEF_TIERS=generic"]
    for command in (
        [tools[1], "-S", str(CSRC), "-B", build, "-G", "Ninja", *options],
        [tools[1], "--build", build, "--parallel", "2"],
        # The harness limits the memory of a process, this one too once its tests have run;
        # AddressSanitizer reserves terabytes of addresses.
        ["sh", "-c", 'ulimit -S -d unlimited; exec "$@"', "sh", f"{build}/ef_sanitize", "10", seed],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
