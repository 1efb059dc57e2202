"""Engines that run a converted copy of the model."""

from encoder_fast.benchmarks.contenders import ctranslate2_engine, onnx_runtime, openvino_engine
from encoder_fast.benchmarks.engine import Contender

CONTENDERS: tuple[Contender, ...] = (
    onnx_runtime.FLOAT,
    onnx_runtime.INT8,
    openvino_engine.OPENVINO,
    ctranslate2_engine.FLOAT,
    ctranslate2_engine.INT8,
)
