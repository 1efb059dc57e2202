"""OpenVINO on the CPU: transformers' SDPA model through `openvino.convert_model`.

In float32, and in bfloat16 where OpenVINO says that the CPU has it.
"""

from pathlib import Path

import torch

from encoder_fast.benchmarks.contenders import exporting
from encoder_fast.benchmarks.engine import Contender, Engine, Ready, Task
from encoder_fast.benchmarks.workloads import Inputs

PRECISION = {"float32": "f32", "bfloat16": "bf16"}
HIDDEN = -1e30
"""Added to scores that count as nothing: finite in bfloat16 as well, unlike float32's lowest."""


def _why_not(task: Task) -> str | None:
    found = exporting.why_not(task, ("openvino", "transformers"), tuple(PRECISION))
    if found is None and task.dtype == "bfloat16":
        import openvino

        if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            return "OpenVINO does not compute in bfloat16 on this CPU"
    return found


def _finite_mask() -> str:
    """transformers' SDPA with a finite mask instead of a boolean one.

    A padded query of ModernBERT may see nothing at all within its window. torch's SDPA makes that
    row 0, OpenVINO's makes it NaN, which then reaches the real tokens as 0 * NaN.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def mask(*args, **options):
        return torch.where(sdpa_mask(*args, **options), 0.0, HIDDEN)

    AttentionInterface.register("sdpa finite", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa finite", mask)
    return "sdpa finite"


def _convert(task: Task, folder: Path) -> None:
    import openvino

    given = exporting.example(exporting.has_types(task))
    with exporting.quiet(), torch.inference_mode():
        model = openvino.convert_model(
            exporting.LastHidden(task.folder, _finite_mask()),
            example_input=given,
            input=[(openvino.PartialShape([-1, -1]), openvino.Type.i64) for _ in given],
        )
    for port, name in zip(model.inputs, exporting.NAMES, strict=False):
        port.get_tensor().set_names({name})
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def _build(task: Task) -> Engine:
    import openvino

    # The weights are kept in fp32 for both dtypes; compiling rounds them.
    folder = exporting.kept(
        task.scratch / f"openvino-{task.model}-float32", lambda made: _convert(task, made)
    )
    compiled = openvino.Core().compile_model(
        folder / "model.xml",
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": PRECISION[task.dtype],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.threads,
            "NUM_STREAMS": 1,
        },
    )
    typed = exporting.has_types(task)

    def ready(inputs: Inputs) -> Ready:
        given = exporting.arrays(inputs, typed)
        real_BS = inputs.mask_BS.bool()
        # One request an input: its output stays where it is until the next call.
        request = compiled.create_infer_request()
        return Ready(
            lambda: request.infer(given, share_inputs=True, share_outputs=True)[0],
            lambda hidden_BSW: torch.from_numpy(hidden_BSW.copy()).float()[real_BS],
        )

    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    return Engine(ready, ran=f"OpenVINO CPU plugin, inference precision {used}")


OPENVINO = Contender("openvino", _build, _why_not)
