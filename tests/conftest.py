"""What every test stands on: a clean import path, no network, fixed seeds and one thread."""

import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The root holds kernels/, which would hide Hugging Face's `kernels` package from transformers. Done
# here, before anything imports that; subprocesses get it from the environment (Python 3.11 on).
sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]
os.environ["PYTHONSAFEPATH"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Read when cuBLAS starts: without it, torch's deterministic switch refuses every product on a GPU.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# Without a GPU, Triton's kernels run in its interpreter. Triton reads this when they are defined.
INTERPRETED = importlib.util.find_spec("triton") is not None and not torch.cuda.is_available()
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton_interpreter
    import triton_memory

    triton_interpreter.install()
    triton_memory.install()

from encoder_fast.demo_model import minilm_folder as find_minilm_folder  # noqa: E402
from encoder_fast.hardware import usable_device  # noqa: E402

# Tiny tensors gain nothing from a second thread, and waiting for it costs 8 ms a call on a busy
# machine. Tests about threads set their own number.
torch.set_num_threads(1)

# No deadline: a first call may load or compile something. No database: a run does not depend on the
# one before it.
hypothesis.settings.register_profile(
    "encoder_fast",
    deadline=None,
    database=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
hypothesis.settings.load_profile("encoder_fast")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        default="cpu",
        help="where tests marked on_device make their tensors and models: cpu (default), cuda",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "on_device: runs on the device that --device names")
    try:
        usable_device(config.getoption("--device"))
    except ValueError as error:
        raise pytest.UsageError(f"--device: {error}") from None


@pytest.fixture(autouse=True)
def on_device(request):
    """Tensors that a marked test makes without naming a device are on that of `--device`."""
    device = request.config.getoption("--device")
    if device == "cpu" or request.node.get_closest_marker("on_device") is None:
        yield
    else:
        with torch.device(device):
            yield


@pytest.fixture(autouse=True)
def seeded():
    """Each test draws the same numbers, whichever tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of the real model all-MiniLM-L6-v2."""
    return find_minilm_folder()


def pytest_terminal_summary(terminalreporter):
    """Counts skips by reason, so that green is not mistaken for everything covered."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        counted = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skips by reason: {counted}")
