"""ONNX Runtime on the CPU, in float32 and with dynamic int8, each model by the faster export.

Compared in fp32 on 2 cores of an EPYC with AVX512-VNNI, shared with other work, fastest of three
interleaved runs, onnxruntime 1.32, 2026-12-01. BERT and its relatives: traced with eager attention,
the one form in which onnxruntime's own transformer optimizer finds the attention; as fast as opset
23 for BERT, 1.11x for ALBERT. ModernBERT: the optimizer finds no attention there, and opset 23,
with nodes for attention and rotary embedding, is 1.17x as fast at 8x128 and 1.06x at 1x2048.
"""

import json
from collections import Counter
from pathlib import Path

import torch

from encoder_fast.benchmarks.contenders import exporting
from encoder_fast.benchmarks.engine import Contender, Engine, Ready, Task
from encoder_fast.benchmarks.workloads import Inputs

TRACED = ("bert", "roberta", "albert", "electra")
DYNAMO = ("modernbert",)
TOLD = (
    "Attention",
    "QAttention",
    "RotaryEmbedding",
    "EmbedLayerNormalization",
    "SkipLayerNormalization",
    "LayerNormalization",
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "MatMul",
)
"""Kinds of nodes that say what was fused and what is computed in int8."""
PACKAGES = ("onnx", "onnxruntime", "onnxscript", "transformers")


def _why_not(task: Task, dtype: str) -> str | None:
    found = exporting.why_not(task, PACKAGES, (dtype,))
    kind = exporting.settings(task)["model_type"]
    if found is None and kind not in TRACED + DYNAMO:
        return f"no export to ONNX here for {kind}"
    return found


def _export_traced(task: Task, path: Path) -> None:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    typed, values = exporting.has_types(task), exporting.settings(task)
    given = exporting.example(typed)
    names = [*exporting.NAMES[: len(given)], "hidden"]
    torch.onnx.export(
        exporting.LastHidden(task.folder, "eager"),
        given,
        path,
        dynamo=False,
        opset_version=18,
        input_names=names[:-1],
        output_names=names[-1:],
        dynamic_axes={name: {0: "B", 1: "S"} for name in names},
    )
    fused = optimizer.optimize_model(
        str(path),
        model_type="bert",
        num_heads=values["num_attention_heads"],
        hidden_size=values["hidden_size"],
        optimization_options=FusionOptions("bert"),
        opt_level=0,
    )
    fused.save_model_to_file(str(path))


def _export_dynamo(task: Task, path: Path) -> None:
    given = exporting.example(exporting.has_types(task))
    longest = exporting.settings(task)["max_position_embeddings"]
    sizes = {0: torch.export.Dim("B", min=1), 1: torch.export.Dim("S", min=2, max=longest)}
    torch.onnx.export(
        exporting.LastHidden(task.folder, "sdpa", explicit_positions=True),
        given,
        path,
        dynamo=True,
        opset_version=23,
        input_names=exporting.NAMES[: len(given)],
        output_names=["hidden"],
        dynamic_shapes=tuple(sizes for _ in given),
        verbose=False,
    )


def _tell(path: Path) -> None:
    """Keep beside the model which nodes it is made of."""
    import onnx

    nodes = Counter(n.op_type for n in onnx.load(path, load_external_data=False).graph.node)
    ran = {kind: str(nodes[kind]) for kind in TOLD if nodes[kind]}
    path.with_suffix(".json").write_text(json.dumps(ran), encoding="utf-8")


def _float_model(task: Task) -> Path:
    def make(folder: Path) -> None:
        path = folder / "model.onnx"
        traced = exporting.settings(task)["model_type"] in TRACED
        with exporting.quiet(), torch.inference_mode():
            (_export_traced if traced else _export_dynamo)(task, path)
        _tell(path)

    folder = exporting.kept(task.scratch / f"onnxruntime-{task.model}-float32", make)
    return folder / "model.onnx"


def _int8_model(task: Task) -> Path:
    """Weights of the matrix products in int8, one scale an output column, activations when run."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # onnxruntime's fused Attention holds the weights of the projections to q, k and v; ONNX's own
    # has none and cannot be quantised.
    fused = ["Attention"] if exporting.settings(task)["model_type"] in TRACED else []

    def make(folder: Path) -> None:
        path = folder / "model.onnx"
        with exporting.quiet():
            quantize_dynamic(
                _float_model(task),
                path,
                op_types_to_quantize=["MatMul", *fused],
                per_channel=True,
                weight_type=QuantType.QInt8,
                # Products of two activations, in the attention, stay float; and shapes are not
                # inferred beyond onnxruntime's own fused nodes, whose outputs are all float.
                extra_options={
                    "MatMulConstBOnly": True,
                    "DefaultTensorType": onnx.TensorProto.FLOAT,
                },
            )
        _tell(path)

    folder = exporting.kept(task.scratch / f"onnxruntime int8-{task.model}-int8", make)
    return folder / "model.onnx"


def _engine(path: Path, task: Task) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Threads that wait by spinning would take the cores from whoever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    typed = exporting.has_types(task)

    def ready(inputs: Inputs) -> Ready:
        given = exporting.arrays(inputs, typed)
        real_BS = inputs.mask_BS.bool()
        return Ready(
            lambda: session.run(["hidden"], given)[0],
            lambda hidden_BSW: torch.from_numpy(hidden_BSW)[real_BS],
        )

    return Engine(ready, ran=json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))


FLOAT = Contender(
    "onnxruntime",
    lambda task: _engine(_float_model(task), task),
    lambda task: _why_not(task, "float32"),
)
INT8 = Contender(
    "onnxruntime int8",
    lambda task: _engine(_int8_model(task), task),
    lambda task: _why_not(task, "int8"),
    note="dynamic int8, one scale a column of the weights, one a tensor of activations",
)
