"""What a model folder says must happen around the encoder to turn text into one vector.

A sentence-transformers folder lists its modules in `modules.json`; each module keeps its settings
and weights in its own subfolder. Here the list becomes a `Recipe`: pooling modes, the modules after
pooling as plain torch modules, prompts, similarity. A plain transformers folder has no list: mean
pooling, nothing after it. A module or a setting that is not known is refused by name, because one
that is silently left out gives plausible but wrong vectors.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from encoder_fast.errors import ConfigError, WeightsError

# sentence-transformers name -> name of the `pool` op's mode; the order is the one in which
# several pooled vectors are concatenated when the settings are flags.
POOLING_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted",
    "lasttoken": "last",
}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_JSON_KINDS = {dict: "object", list: "list"}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclasses.dataclass
class Recipe:
    """How token vectors become a text vector, and what is put before a text."""

    encoder_folder: Path
    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    after: nn.Sequential = dataclasses.field(default_factory=nn.Sequential)
    output_width: int | None = None
    normalize: bool = False
    prompts: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"query": "", "document": ""}
    )
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    max_length: int | None = None
    lower_case: bool = False


def read_json(path: Path, kind: type = dict) -> dict | list:
    """The parsed file, an empty `kind` where there is none; ConfigError naming a broken file."""
    if not path.is_file():
        return kind()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        found = type(value).__name__
        raise ConfigError(f"{path} must hold a JSON {_JSON_KINDS[kind]}, got {found}")
    return value


def read_recipe(folder: str | Path) -> Recipe:
    """The `Recipe` of a local folder; ConfigError or WeightsError naming what is not understood."""
    folder = Path(folder)
    modules = read_json(folder / "modules.json", list)
    recipe = Recipe(encoder_folder=folder)
    after = []
    for kind, path in (_kind_and_path(entry, folder) for entry in modules):
        if kind == "Transformer":
            recipe.encoder_folder = path
        elif kind == "Pooling":
            recipe.pooling, recipe.include_prompt = _read_pooling(path)
        else:
            after.append(_AFTER_POOLING[kind](path))
    # The last normalisation is a switch of `encode`, and truncation goes before it.
    if after and isinstance(after[-1], UnitLength):
        recipe.normalize = True
        after.pop()
    recipe.after = nn.Sequential(*after).eval().requires_grad_(False)
    widths = [module.out_features for module in after if isinstance(module, DenseLayer)]
    recipe.output_width = widths[-1] if widths else None
    _read_transformer_settings(recipe)
    _read_prompts(recipe, folder / "config_sentence_transformers.json")
    return recipe


def pooling_modes(value: str | Iterable[str], source: str | Path) -> tuple[str, ...]:
    """One or several mode names -> tuple of `pool` op modes; ConfigError naming a wrong one."""
    if not isinstance(value, str | Iterable):
        raise ConfigError(f"{source}: pooling must be a name or several, got {value!r}")
    names = (value,) if isinstance(value, str) else tuple(value)
    known = {**POOLING_MODES, **{mode: mode for mode in POOLING_MODES.values()}}
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ConfigError(
            f"{source}: pooling {wrong or value!r} is not known; allowed: {', '.join(known)}"
        )
    return tuple(known[name] for name in names)


class DenseLayer(nn.Module):
    """(B, in) -> (B, out): activation(linear(x)), plus the input where the folder asks for it."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool, activation: nn.Module, residual: bool
    ):
        super().__init__()
        self.out_features = out_features
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = activation
        self.add_input = residual
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x_BW: Tensor) -> Tensor:
        y_BW = self.activation(self.linear(x_BW))
        if not self.add_input:
            return y_BW
        return y_BW + (self.residual(x_BW) if hasattr(self, "residual") else x_BW)


class UnitLength(nn.Module):
    """Rows scaled to length 1; a zero row stays zero."""

    def forward(self, x_BW: Tensor) -> Tensor:
        return nn.functional.normalize(x_BW, dim=-1)


def _kind_and_path(entry: dict, folder: Path) -> tuple[str, Path]:
    entry = entry if isinstance(entry, dict) else {"type": entry}
    name = str(entry.get("type", ""))
    kind = name.rpartition(".")[2]
    supported = ("Transformer", "Pooling", *_AFTER_POOLING)
    if not name.startswith("sentence_transformers.") or kind not in supported:
        raise ConfigError(
            f"{folder / 'modules.json'}: module {name!r} is not supported; "
            f"supported sentence_transformers modules: {', '.join(supported)}"
        )
    return kind, folder / entry.get("path", "")


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    config = read_json(path / "config.json")
    if "pooling_mode" in config:
        names = config["pooling_mode"]
    else:
        unknown = [
            key
            for key, on in config.items()
            if key.startswith("pooling_mode_") and on and key not in _POOLING_FLAGS
        ]
        if unknown:
            raise ConfigError(f"{path / 'config.json'}: {', '.join(unknown)} is not supported")
        names = [name for flag, name in _POOLING_FLAGS.items() if config.get(flag)] or "mean"
    modes = pooling_modes(names, path / "config.json")
    return modes, bool(config.get("include_prompt", True))


def _read_dense(path: Path) -> DenseLayer:
    config = _sentence_module_config(path, "in_features", "out_features")
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    known = name.startswith("torch.nn.")
    activation = getattr(nn, name.rpartition(".")[2], None) if known else None
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise ConfigError(
            f"{path / 'config.json'}: activation_function {name!r} is not a module of torch.nn"
        )
    sizes = config["in_features"], config["out_features"], config.get("bias", True)
    layer = DenseLayer(*sizes, activation(), config.get("use_residual", False))
    return _load_weights(layer, path)


def _read_layer_norm(path: Path) -> nn.LayerNorm:
    norm = nn.LayerNorm(_sentence_module_config(path, "dimension")["dimension"])
    return _load_weights(norm, path, prefix="norm.")


def _read_normalize(path: Path) -> UnitLength:
    _sentence_module_config(path)
    return UnitLength()


def _sentence_module_config(path: Path, *needed: str) -> dict:
    config = read_json(path / "config.json")
    for key in needed:
        if not isinstance(config.get(key), int):
            got = config.get(key)
            raise ConfigError(f"{path / 'config.json'}: {key} must be a number, got {got}")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise ConfigError(
                f"{path / 'config.json'}: {key} {config[key]!r} is not supported; "
                "allowed: 'sentence_embedding'"
            )
    return config


_AFTER_POOLING = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
    # Dropout does nothing outside training.
    "Dropout": lambda path: nn.Identity(),
}


def _load_weights(module: nn.Module, path: Path, prefix: str = "") -> nn.Module:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    safe, pickled = path / "model.safetensors", path / "pytorch_model.bin"
    source = safe if safe.is_file() else pickled
    if not source.is_file():
        raise WeightsError(f"{path} has neither model.safetensors nor pytorch_model.bin")
    try:
        if source is safe:
            tensors = load_file(safe)
        else:
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
        tensors = {name.removeprefix(prefix): value.float() for name, value in tensors.items()}
        module.load_state_dict(tensors)
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise WeightsError(f"{source} does not hold the weights of this module: {error}") from None
    except Exception as error:
        # torch.load raises pickle.UnpicklingError on code in a pickle, and other types on rubbish.
        raise WeightsError(f"{source} cannot be read safely: {error}") from None
    return module


def _read_transformer_settings(recipe: Recipe) -> None:
    path = recipe.encoder_folder / "sentence_bert_config.json"
    config = read_json(path)
    task = config.get("transformer_task", "feature-extraction")
    if task not in ("feature-extraction", "fill-mask"):
        raise ConfigError(f"{path}: transformer_task {task!r} is not supported")
    for key in ("processing_kwargs", "query_length", "document_length", "query_expansion"):
        if config.get(key):
            raise ConfigError(f"{path}: {key} is not supported, and it is {config[key]!r}")
    recipe.max_length = config.get("max_seq_length")
    recipe.lower_case = bool(config.get("do_lower_case", False))


def _read_prompts(recipe: Recipe, path: Path) -> None:
    config = read_json(path)
    recipe.prompts.update({k: v or "" for k, v in (config.get("prompts") or {}).items()})
    recipe.default_prompt_name = config.get("default_prompt_name")
    if recipe.default_prompt_name not in (None, *recipe.prompts):
        raise ConfigError(
            f"{path}: default_prompt_name {recipe.default_prompt_name!r} is not one of the prompts "
            f"{sorted(recipe.prompts)}"
        )
    recipe.similarity = config.get("similarity_fn_name") or "cosine"
    if recipe.similarity not in SIMILARITIES:
        raise ConfigError(
            f"{path}: similarity_fn_name {recipe.similarity!r} is not known; "
            f"allowed: {', '.join(SIMILARITIES)}"
        )
    recipe.truncate_dim = config.get("truncate_dim")
