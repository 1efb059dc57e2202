"""The models that are timed: true shapes; random weights where no package carries real ones."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from encoder_fast.architectures import architecture_of
from encoder_fast.benchmarks.workloads import Workload
from encoder_fast.config import EncoderConfig
from encoder_fast.config_json import Settings

_MODERNBERT = {
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "pad_token_id": 50283,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
}


def _shape(width: int, inner: int, layers: int, heads: int) -> dict:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _bert(kind: str, vocabulary: int, shape: dict, **more) -> dict:
    """What BERT and its relatives share; `more` wins."""
    defaults = {
        "model_type": kind,
        "vocab_size": vocabulary,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    return defaults | shape | more


CONFIGS = {
    "modernbert-base": _MODERNBERT | _shape(768, 1152, 22, 12),
    "modernbert-large": _MODERNBERT | _shape(1024, 2624, 28, 16),
    "bert-base": _bert("bert", 30522, _shape(768, 3072, 12, 12)),
    "minilm-l6": _bert("bert", 30522, _shape(384, 1536, 6, 12)),
    "roberta-base": _bert(
        "roberta",
        50265,
        _shape(768, 3072, 12, 12),
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
    ),
    "albert-base": _bert(
        "albert", 30000, _shape(768, 3072, 12, 12), hidden_act="gelu_new", embedding_size=128
    ),
    "electra-small": _bert("electra", 30522, _shape(256, 1024, 12, 4), embedding_size=128),
}
"""The published shapes: the checkpoints' own config.json, in the keys that decide the work."""


@dataclass(frozen=True)
class Written:
    """A checkpoint folder: config.json, model.safetensors in fp32, tokenizer, bench.json."""

    name: str
    folder: Path
    real_weights: bool
    longest: int
    config: EncoderConfig

    def why_not(self, workload: Workload) -> str | None:
        """Why a workload is not for this model."""
        if max(workload.lengths) > self.longest:
            return f"{self.name} takes {self.longest} tokens at most"
        return None


def write(name: str, scratch: Path, config: dict | None = None) -> Written:
    """Write model `name` into a folder of `scratch`; a test gives its own small `config`.

    bench.json says how to draw inputs: word ids with their texts, special tokens, token types.
    """
    folder = scratch / name
    real = config is None and name == "minilm-l6" and _copy_minilm(folder)
    if not real:
        _random_weights(config or CONFIGS[name], folder)
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    offset = values["pad_token_id"] + 1 if values["model_type"] == "roberta" else 0
    longest = values["max_position_embeddings"] - offset
    return Written(name, folder, real, longest, config_of(values))


def config_of(values: dict) -> EncoderConfig:
    """The encoder that a config.json's dictionary describes."""
    return architecture_of(values["model_type"]).config(Settings(values))


def _copy_minilm(folder: Path) -> bool:
    """Real weights, where the package that carries them is installed."""
    from encoder_fast.demo_model import minilm_folder

    try:
        source = minilm_folder()
    except (ModuleNotFoundError, FileNotFoundError):
        return False
    shutil.copytree(source, folder, dirs_exist_ok=True)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    vocabulary = vocabulary["vocab"]
    # Whole words only: they are cut into the very same tokens again.
    words = [(i, w) for w, i in vocabulary.items() if re.fullmatch("[a-z]{2,}", w)]
    _describe(folder, words, vocabulary["[CLS]"], vocabulary["[SEP]"], vocabulary["[PAD]"], 2)
    return True


def _random_weights(config: dict, folder: Path) -> None:
    import encoder_fast as ef

    torch.manual_seed(0)
    ef.from_config(config).save_pretrained(folder)
    pad, size = config["pad_token_id"], config["vocab_size"]
    first, last, unknown = [i for i in range(4) if i != pad][:3]
    words = [(i, f"w{i}") for i in range(4, size) if i != pad]
    tokenizer = _word_tokenizer(dict((w, i) for i, w in words), first, last, pad, unknown)
    tokenizer.save(str(folder / "tokenizer.json"))
    made = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "model_max_length": config["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(made), encoding="utf-8")
    _describe(folder, words, first, last, pad, config.get("type_vocab_size", 0))


def _word_tokenizer(words: dict[str, int], first: int, last: int, pad: int, unknown: int):
    """One word, one token: texts of an exact number of tokens for a model that has no tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = {"[CLS]": first, "[SEP]": last, "[PAD]": pad, "[UNK]": unknown}
    tokenizer = Tokenizer(models.WordLevel(words | special, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", first), ("[SEP]", last)]
    )
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _describe(folder: Path, words: list, first: int, last: int, pad: int, types: int) -> None:
    about = {"words": words, "first": first, "last": last, "pad": pad, "types": types}
    (folder / "bench.json").write_text(json.dumps(about), encoding="utf-8")
