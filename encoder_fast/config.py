"""EncoderConfig: every number that changes what an encoder computes, resolved once from a
checkpoint's config.json (`config_json.Settings` reads that).
"""

from dataclasses import dataclass, field
from typing import Any

from encoder_fast.config_json import is_count, is_number, require
from encoder_fast.kernels.activations import ACTIVATIONS


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
    tie_word_embeddings: bool = True
    """The masked-LM head scores words by the token table."""
    num_labels: int = 2
    problem_type: str | None = None
    score_activation: str | None = None
    """A cross-encoder's last activation, as a dotted name of torch; None is a sigmoid."""
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
            value = getattr(self, name)
            require(name, value, is_count(value), "a positive integer")
        require("num_hidden_layers", len(self.plan), len(self.plan) > 0, "at least one layer")
        width, heads = self.hidden_size, self.num_heads
        require("hidden_size", width, width % heads == 0, f"a multiple of num_heads {heads}")
        rotary = any(layer.rope_theta is not None for layer in self.plan)
        even = not (rotary and self.head_width % 2)
        require("head width", self.head_width, even, "an even number for rotary models")
        for name in ("activation", "classifier_activation"):
            value = getattr(self, name)
            require(name, value, value in ACTIVATIONS, f"one of {sorted(ACTIVATIONS)}")
        for name in (n for n in self.__dataclass_fields__ if n.endswith("_dropout")):
            value = getattr(self, name)
            require(name, value, is_number(value) and value < 1, "a probability below 1")
        eps, rows, pad = self.norm_eps, self.position_rows, self.pad_token_id
        require("norm_eps", eps, is_number(eps) and eps > 0, "a positive number")
        learned = rows is None or is_count(rows)
        require("max_position_embeddings", rows, learned, "a positive integer")
        inside = pad is None or (is_count(pad, 0) and pad < self.vocab_size)
        require("pad_token_id", pad, inside, f"0 to {self.vocab_size - 1}")
        pooling, poolings = self.classifier_pooling, ("cls", "mean")
        require("classifier_pooling", pooling, pooling in poolings, f"one of {poolings}")
        problem = self.problem_type
        problems = (None, "regression", "single_label_classification", "multi_label_classification")
        require("problem_type", problem, problem in problems, f"one of {problems}")

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
    def score_kind(self) -> str:
        """Class in torch.nn of `score_activation`; a `ConfigError` unless a score can have it."""
        name, kinds = self.score_activation, ("Identity", "Sigmoid", "Tanh")
        if name is None:
            return "Sigmoid"
        kind = name.rsplit(".", 1)[-1] if str(name).startswith("torch.nn.") else None
        require("activation_fn", name, kind in kinds, f"one of {kinds} of torch.nn")
        return kind

    @property
    def id2label(self) -> dict[int, str]:
        """Label names; LABEL_0, LABEL_1, ... where the config has none for this number of
        labels.
        """
        named = {int(k): v for k, v in (self.hf.get("id2label") or {}).items()}
        if sorted(named) == list(range(self.num_labels)):
            return named
        return {i: f"LABEL_{i}" for i in range(self.num_labels)}
