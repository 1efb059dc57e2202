"""encoder_fast: BERT-family encoders, fast, with the weights people already have.

Names are imported when first used, so that `import encoder_fast` costs no more than importing
torch.
"""

from importlib import import_module

from encoder_fast._version import __version__

_HOME = {
    "Batch": "batch",
    "EncoderConfig": "config",
    "Model": "model",
    "Output": "model",
    "TextEncoder": "text",
    "BackendError": "errors",
    "ConfigError": "errors",
    "WeightsError": "errors",
    "backends": "model",
    "from_config": "weights",
    "load": "weights",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'encoder_fast' has no attribute {name!r}")
    value = getattr(import_module(f"encoder_fast.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
