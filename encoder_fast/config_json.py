"""Reading a config.json: typed values by their own names, and no key left over.

`Settings` remembers which keys were used, so that a key that nobody read is refused by name: a
silently ignored setting is the classic way for two implementations to disagree.
"""

import math
from collections.abc import Iterable
from typing import Any

from encoder_fast.errors import ConfigError

IGNORABLE = frozenset(
    """_attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _name_or_path _num_labels adapters architectures attn_implementation auto_map bad_words_ids
    begin_suppress_tokens bos_token_id chunk_size_feed_forward classifiers_size cls_token_id
    custom_pipelines decoder_start_token_id deterministic_flash_attn directionality
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
    eos_token_ids exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id gradient_checkpointing initializer_cutoff_factor is_encoder_decoder label2id
    language length_penalty mask_token_id max_length min_length model_type name no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_past output_scores pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type prefix reference_compile remove_invalid_values
    repad_logits_with_grad repetition_penalty return_dict return_dict_in_generate sep_token_id
    sparse_pred_ignore_index sparse_prediction suppress_tokens task_specific_params temperature
    tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unk_token_id use_bfloat16 use_cache
    xla_device""".split()
)
"""Keys that do not change what an encoder computes (training, generation, bookkeeping)."""

CAUSAL = ("is_decoder", "add_cross_attention", "is_causal", "causal_mask", "use_sdpa_attn_mask")


def require(name: str, value: Any, ok: bool, allowed: str) -> None:
    """Raise a `ConfigError` that names the setting unless `ok`."""
    if not ok:
        raise ConfigError(f"{name}: got {value!r}, {allowed} needed")


def is_count(value: Any, least: int = 1) -> bool:
    """Is it an integer (True is none) of at least `least`?"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, least: float = 0.0) -> bool:
    """Is it a finite number (True is none) of at least `least`?"""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= least


class Settings:
    """A config.json that counts what was read. A missing key and a null both give the default.

    Args:
        values: the json object.
        ignore: further keys that may stay unread.

    Raises:
        ConfigError: by every method, for a value that is missing or not of its kind; it names the
            key as config.json spells it.
    """

    def __init__(self, values: dict[str, Any], ignore: Iterable[str] = ()):
        self.values, self.ignore, self.used = values, frozenset(ignore), set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, unchecked."""
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

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; needed where there is no default."""
        value = self.need(key) if default is None else self.get(key, default)
        require(key, value, is_count(value), "a positive integer")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number of at least 0."""
        value = self.get(key, default)
        require(key, value, is_number(value), "a number of at least 0")
        return float(value)

    def positive(self, key: str, default: float) -> float:
        """A positive finite number."""
        value = self.get(key, default)
        require(key, value, is_number(value) and value > 0, "a positive number")
        return float(value)

    def probability(self, key: str, default: float) -> float:
        """A dropout: from 0 to below 1."""
        value = self.get(key, default)
        require(key, value, is_number(value) and value < 1, "a probability below 1")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.get(key, default)
        require(key, value, isinstance(value, bool), "true or false")
        return value

    def choice(self, key: str, default: str, allowed: Iterable[str]) -> str:
        """One of the strings in `allowed`."""
        value = self.get(key, default)
        names = sorted(allowed)
        require(key, value, isinstance(value, str) and value in names, f"one of {names}")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse values that would change the computation; the key may be absent."""
        value = self.get(key, allowed[0])
        require(key, value, value in allowed, " or ".join(repr(a) for a in allowed))

    def finish(self) -> None:
        """Refuse keys that nobody read, unless they are null."""
        given = {key for key, value in self.values.items() if value is not None}
        unknown = sorted(given - self.used - IGNORABLE - self.ignore)
        if unknown:
            raise ConfigError(
                f"config.json: unknown settings {unknown}; if they do not change what the encoder "
                f"computes, pass ignore_config_keys={unknown}"
            )

    def num_labels(self) -> int:
        """From `num_labels` or the label names; 2 as in transformers."""
        names = self.get("id2label", {})
        numbered = isinstance(names, dict) and all(str(key).isdecimal() for key in names)
        require("id2label", names, numbered, "an object from label numbers to names")
        return self.count("num_labels", len(names) or 2)

    def score_activation(self) -> str | None:
        """Dotted name of a cross-encoder's last activation, in either spelling."""
        options = self.get("sentence_transformers", {})
        require("sentence_transformers", options, isinstance(options, dict), "an object")
        old = self.get("sbert_ce_default_activation_function")
        return options.get("activation_fn", old)

    def pad_token_id(self, default: int) -> int | None:
        """An absent key gives the family's default, a null none."""
        value = self.get("pad_token_id")
        return value if "pad_token_id" in self.values else default

    def common(self, pad: int) -> dict[str, Any]:
        """Fields of `EncoderConfig` that every family spells alike.

        Args:
            pad: the family's `pad_token_id` where the file has none.
        """
        for key in CAUSAL:
            self.only(key, False)
        self.only("pruned_heads", {})
        self.only("quantization_config", None)
        width, heads = self.count("hidden_size"), self.count("num_attention_heads")
        even = width % heads == 0
        require("hidden_size", width, even, f"a multiple of num_attention_heads {heads}")
        return {
            "vocab_size": self.count("vocab_size"),
            "hidden_size": width,
            "num_heads": heads,
            "intermediate_size": self.count("intermediate_size"),
            "pad_token_id": self.pad_token_id(pad),
            "initializer_range": self.number("initializer_range", 0.02),
            "tie_word_embeddings": self.flag("tie_word_embeddings", True),
            "num_labels": self.num_labels(),
            "problem_type": self.get("problem_type"),
            "score_activation": self.score_activation(),
            "hf": dict(self.values),
        }
