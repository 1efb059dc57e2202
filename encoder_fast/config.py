"""EncoderConfig: every number that changes what an encoder computes, resolved once from a
checkpoint's config.json.

`Settings` reads the json. It remembers which keys were used, so that a key that nobody read is
refused by name: a silently ignored setting is the classic way for two implementations to disagree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from encoder_fast.errors import ConfigError
from encoder_fast.kernels.activations import ACTIVATIONS

IGNORABLE = frozenset(
    """_attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _name_or_path adapters architectures attn_implementation auto_map bad_words_ids
    begin_suppress_tokens bos_token_id chunk_size_feed_forward classifiers_size cls_token_id
    custom_pipelines decoder_start_token_id deterministic_flash_attn directionality
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label initializer_cutoff_factor initializer_range is_encoder_decoder
    label2id length_penalty max_length min_length mask_token_id model_type no_repeat_ngram_size
    num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
    output_past output_scores pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type prefix problem_type reference_compile remove_invalid_values
    repad_logits_with_grad repetition_penalty return_dict return_dict_in_generate
    sentence_transformers sep_token_id sparse_pred_ignore_index sparse_prediction suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings
    tokenizer_class top_k top_p torch_dtype torchscript transformers_version transformers.js_config
    typical_p use_bfloat16 use_cache unk_token_id""".split()
)
"""Keys that do not change what an encoder computes (training, generation, bookkeeping)."""


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does that its neighbours may not."""

    weights: int
    """Index of the parameters that it uses: ALBERT's layers share them."""
    half_window: int | None = None
    """Largest visible distance in columns; None is global."""
    rope_theta: float | None = None
    """Base of the rotary embedding; None is no rotation."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """One encoder. Widths and counts are positive, dropouts are probabilities; checked on
    construction.
    """

    architecture: str
    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    plan: tuple[LayerPlan, ...]
    pre_norm: bool
    gated_mlp: bool
    activation: str
    norm_eps: float
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    project_embeddings: bool = False
    """A linear map from the embedding width to the model width after the embedding norm."""
    position_rows: int | None
    """Rows of the learned position table; None for rotary models."""
    position_offset: int | None = None
    """RoBERTa: positions start at this + 1 and are counted over ids; None means the column."""
    type_rows: int
    pad_token_id: int | None
    embedding_dropout: float = 0.0
    hidden_dropout: float = 0.0
    mlp_output_dropout: float = 0.0
    """After the feed-forward's second matrix (BERT's hidden dropout; ALBERT has none there)."""
    attention_dropout: float = 0.0
    mlp_inner_dropout: float = 0.0
    classifier_dropout: float = 0.0
    classifier_pooling: str = "cls"
    classifier_activation: str = "gelu"
    classifier_bias: bool = True
    decoder_bias: bool = True
    initializer_range: float = 0.02
    num_labels: int = 2
    problem_type: str | None = None
    hf: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The config.json that this was read from."""

    def __post_init__(self):
        for name in (
            "vocab_size",
            "embedding_size",
            "hidden_size",
            "num_heads",
            "intermediate_size",
            "num_labels",
        ):
            require(
                name,
                getattr(self, name),
                isinstance(getattr(self, name), int) and getattr(self, name) > 0,
                "a positive integer",
            )
        require("num_hidden_layers", len(self.plan), len(self.plan) > 0, "at least one layer")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"hidden_size: got {self.hidden_size}, a multiple of num_attention_heads "
                f"{self.num_heads} needed"
            )
        rotary = any(layer.rope_theta is not None for layer in self.plan)
        require(
            "head width",
            self.head_width,
            not (rotary and self.head_width % 2),
            "an even number for rotary models",
        )
        for name in ("activation", "classifier_activation"):
            require(
                name,
                getattr(self, name),
                getattr(self, name) in ACTIVATIONS,
                f"one of {sorted(ACTIVATIONS)}",
            )
        for name in (n for n in self.__dataclass_fields__ if n.endswith("_dropout")):
            value = getattr(self, name)
            is_number = isinstance(value, int | float)
            require(name, value, is_number and 0.0 <= value < 1.0, "a probability below 1")
        eps, rows, pad = self.norm_eps, self.position_rows, self.pad_token_id
        require("norm_eps", eps, isinstance(eps, float) and eps > 0, "a positive number")
        counted = isinstance(rows, int) and rows > 0
        require("max_position_embeddings", rows, rows is None or counted, "a positive integer")
        inside = isinstance(pad, int) and 0 <= pad < self.vocab_size
        require("pad_token_id", pad, pad is None or inside, f"0 to {self.vocab_size - 1}")
        require(
            "classifier_pooling",
            self.classifier_pooling,
            self.classifier_pooling in ("cls", "mean"),
            "'cls' or 'mean'",
        )
        problems = (None, "regression", "single_label_classification", "multi_label_classification")
        require(
            "problem_type", self.problem_type, self.problem_type in problems, f"one of {problems}"
        )

    @property
    def head_width(self) -> int:
        """D."""
        return self.hidden_size // self.num_heads

    @property
    def num_layers(self) -> int:
        """Layers that a token passes (ALBERT: inner layers counted)."""
        return len(self.plan)

    @property
    def num_layer_weights(self) -> int:
        """Layers that have parameters of their own."""
        return max(layer.weights for layer in self.plan) + 1

    @property
    def half_windows(self) -> tuple[int | None, ...]:
        """The distinct half-widths of the plan."""
        return tuple(dict.fromkeys(layer.half_window for layer in self.plan))

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens that the position table serves; None for rotary models."""
        if self.position_rows is None:
            return None
        first = 0 if self.position_offset is None else self.position_offset + 1
        return self.position_rows - first

    @property
    def id2label(self) -> dict[int, str]:
        """Label names; LABEL_0, LABEL_1, ... where the config has none for this number of
        labels.
        """
        named = {int(k): v for k, v in (self.hf.get("id2label") or {}).items()}
        if sorted(named) == list(range(self.num_labels)):
            return named
        return {i: f"LABEL_{i}" for i in range(self.num_labels)}


def require(name: str, value: Any, ok: bool, allowed: str) -> None:
    """Raise a `ConfigError` that names the setting unless `ok`."""
    if not ok:
        raise ConfigError(f"{name}: got {value!r}, {allowed} needed")


class Settings:
    """A config.json that counts what was read.

    Args:
        values: the json object.
        ignore: further keys that may stay unread.
    """

    def __init__(self, values: dict[str, Any], ignore: Iterable[str] = ()):
        self.values, self.ignore, self.used = values, frozenset(ignore), set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`; a missing key and a null both give `default`."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """The value of `key`, which must be there."""
        value = self.get(key)
        if value is None:
            raise ConfigError(
                f"{key}: missing in config.json of model_type {self.values.get('model_type')!r}"
            )
        return value

    def count(self, key: str) -> int:
        """The value of `key`, which must be a positive integer."""
        value = self.need(key)
        require(key, value, isinstance(value, int) and value > 0, "a positive integer")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse values that would change the computation; the key may be absent."""
        value = self.get(key, allowed[0])
        require(key, value, value in allowed, " or ".join(repr(a) for a in allowed))

    def finish(self) -> None:
        """Refuse keys that nobody read."""
        unknown = sorted(set(self.values) - self.used - IGNORABLE - self.ignore)
        if unknown:
            raise ConfigError(
                f"config.json: unknown settings {unknown}; if they do not change what the encoder "
                f"computes, pass ignore_config_keys={unknown}"
            )

    def num_labels(self) -> int:
        """From `num_labels` or the label names; 2 as in transformers."""
        labels = self.values.get("id2label") or {}
        count = self.values.get("num_labels")
        return len(labels) or 2 if count is None else count

    def common(self) -> dict[str, Any]:
        """Fields of `EncoderConfig` that every family spells alike."""
        for key in ("is_decoder", "add_cross_attention"):
            self.only(key, False)
        self.only("pruned_heads", {})
        return {
            "vocab_size": self.need("vocab_size"),
            "hidden_size": self.need("hidden_size"),
            "num_heads": self.need("num_attention_heads"),
            "intermediate_size": self.need("intermediate_size"),
            "pad_token_id": self.get("pad_token_id"),
            "initializer_range": self.values.get("initializer_range", 0.02),
            "num_labels": self.num_labels(),
            "problem_type": self.values.get("problem_type"),
            "hf": dict(self.values),
        }
