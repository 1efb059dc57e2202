"""Model: an encoder with an optional head, called with padded tensors or with a `Batch`."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from encoder_fast import _label_checks as check
from encoder_fast.architectures import by_name
from encoder_fast.batch import Batch
from encoder_fast.config import EncoderConfig
from encoder_fast.encoder import Encoder
from encoder_fast.heads import KINDS, Embedding, Rerank, Targets
from encoder_fast.kernels import dispatch
from encoder_fast.kernels.dispatch import Ops
from encoder_fast.kernels.pool import check_pooling

HEADS = (
    "masked_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "pretraining",
    "rerank",
    "embedding",
)


@dataclass
class Output:
    """Results of one call; what a head does not compute is None.

    Per-token values are `(B, S, ...)` with a fixed value in padding for a padded call, and `(T,
    ...)` for a `Batch`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    pair_logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    scores: Tensor | None = None
    embeddings: Tensor | None = None
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None

    @property
    def prediction_logits(self) -> Tensor | None:
        """transformers' name for a pretraining model's word scores."""
        return self.logits

    @property
    def seq_relationship_logits(self) -> Tensor | None:
        """transformers' name for BERT's next-sentence scores."""
        return self.pair_logits

    @property
    def sop_logits(self) -> Tensor | None:
        """transformers' name for ALBERT's sentence-order scores."""
        return self.pair_logits

    def to_tuple(self) -> tuple:
        """The results that are not None, in field order."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v for v in values if v is not None)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, int | slice):
            return self.to_tuple()[key]
        names = {f.name for f in fields(self)}
        names |= {name for name, value in vars(Output).items() if isinstance(value, property)}
        if key not in names:
            raise KeyError(f"key: got {key!r}, one of {sorted(names)} needed")
        return getattr(self, key)


def build_head(
    ops: Ops, config: EncoderConfig, name: str | None, options: dict | None = None
) -> nn.Module | None:
    """The head module called `name`.

    Raises:
        ValueError: unknown name, or a head that the family does not have.
    """
    if name is None:
        return None
    if name not in HEADS:
        raise ValueError(f"head: got {name!r}, allowed are {(None, *HEADS)}")
    if name == "embedding":
        return Embedding(**(options or {}))
    heads = by_name(config.architecture).heads
    spec = heads.get("sequence_classification" if name == "rerank" else name)
    if spec is None:
        raise ValueError(
            f"head: got {name!r}, {config.architecture} has {sorted(heads)}, "
            "'rerank' and 'embedding'"
        )
    kind = Rerank if name == "rerank" else KINDS[spec.kind]
    return kind(ops, config, **spec.options(config))


class Model(nn.Module):
    """Encoder and head. Build with `load` or `from_config`. Training takes less memory with
    `model.recompute = "mlp"` or `"layer"`.

    Args:
        config: what to compute.
        ops: what computes it, from `kernels.dispatch.resolve`.
        head_name: None or one of `HEADS`.
        pooler: hold the pooler even if the head does not need it.
        head_options: arguments of the embedding head.
    """

    def __init__(
        self,
        config: EncoderConfig,
        ops: Ops,
        head_name: str | None,
        pooler: bool,
        head_options: dict | None = None,
    ):
        super().__init__()
        self.config, self.head_name = config, head_name
        self.encoder = Encoder(config, ops, pooler)
        self.head = build_head(ops, config, head_name, head_options)

    @property
    def ops(self) -> Ops:
        return self.encoder.ops

    @property
    def recompute(self) -> str | None:
        """What a backward computes again instead of keeping it, with the same gradients: None
        (nothing), "mlp" (the inner activations of feed-forward blocks) or "layer" (everything
        between the inputs of layers). May be set at any time.

        Raises:
            ValueError: another value is set.
        """
        return self.encoder.recompute

    @recompute.setter
    def recompute(self, value: str | None) -> None:
        self.encoder.recompute = value

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.token.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.embeddings.token.weight.dtype

    def forward(
        self,
        input_ids: Tensor | Batch | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: float | None = None,
        output_hidden_states: bool = False,
        return_logits: bool | None = None,
        output_attentions: bool = False,
        head_mask: None = None,
        return_dict: bool = True,
    ) -> Output:
        """Padded in, padded out; a `Batch` in, packed out.

        Args:
            input_ids: `(B, S)` integers, or a `Batch` (then no other input argument).
            attention_mask: `(B, S)` of 0 and 1, any dtype; None is all ones.
            inputs_embeds: `(B, S, E)` in place of `input_ids`.
            labels: per token `(B, S)` or packed `(T,)`, or per sequence `(B,)` / `(B, C)`; -100 is
                ignored. Labels of padding are ignored too.
            num_items_in_batch: divides the summed loss in place of the number of labels.
            return_logits: a masked-LM head given labels computes no logits unless this is True.

        Returns:
            `Output`.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype, device or range.
        """
        check.unsupported(output_attentions, head_mask, return_dict)
        batch, padded = self._batch(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        )
        given = {"labels": labels} | check.one_pair(next_sentence_label, sentence_order_label)
        given |= {"start_positions": start_positions, "end_positions": end_positions}
        targets = self._targets(batch, padded, given, num_items_in_batch, return_logits)
        x_TW, states = self.encoder(batch, output_hidden_states)
        results = {} if self.head is None else self.head(x_TW, batch, self.encoder, targets)
        fills = {} if self.head is None else self.head.token_fill
        if self.encoder.pooler is not None and self.head is None:
            results["pooler_output"] = self.encoder.pool_first(x_TW, batch)
        if padded:
            for name in fills.keys() & results.keys():
                low = torch.finfo(results[name].dtype).min
                results[name] = batch.to_padded(
                    results[name], low if fills[name] == "lowest" else fills[name]
                )
            x_TW = batch.to_padded(x_TW)
            states = states and [batch.to_padded(s) for s in states]
        return Output(**results, last_hidden_state=x_TW, hidden_states=states and tuple(states))

    def _batch(
        self, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
    ) -> tuple[Batch, bool]:
        """The packed batch, and whether the caller wants padded results."""
        if not isinstance(input_ids, Batch):
            args = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
            return Batch.from_padded(*args), True
        others = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ValueError(f"{given[0]}: got a tensor beside a Batch, which already carries it")
        return input_ids, False

    def _targets(self, batch: Batch, padded: bool, given: dict, num_items, want_logits) -> Targets:
        """Labels in packed form, after checking that this head takes them."""
        check.tensors(given)
        check.num_items(num_items)
        (pair_name,) = given.keys() & {"next_sentence_label", "sentence_order_label"}
        takes = {
            "labels": self.head is not None
            and self.head_name not in ("embedding", "question_answering"),
            pair_name: hasattr(self.head, "pair"),
            "start_positions": self.head_name == "question_answering",
            "end_positions": self.head_name == "question_answering",
        }
        for name, taken in takes.items():
            if given[name] is not None and not taken:
                raise ValueError(
                    f"{name}: got labels, but head {self.head_name!r} takes none of that name"
                )
        labels, pair = given["labels"], given.pop(pair_name)
        if pair is not None:
            check.classes_of(pair_name, pair, batch.B, 2)
        if labels is not None and "logits" in self.head.token_fill:
            wanted = (batch.B, batch.padded_length) if padded else (batch.T,)
            if tuple(labels.shape) != wanted:
                raise ValueError(f"labels: got shape {tuple(labels.shape)}, {wanted} needed")
            labels = batch.pack(labels) if padded else labels
            labels = labels.to(batch.device)
        given |= {"labels": labels, "pair_labels": pair}
        return Targets(**given, num_items=num_items, want_logits=want_logits)

    def pool(
        self,
        batch: Batch,
        mode: str = "mean",
        normalize: bool = True,
        truncate_dim: int | None = None,
    ) -> Tensor:
        """One vector per sequence, fp32 `(B, W or truncate_dim)`: the encoder, then the `pool`
        op.
        """
        check_pooling(mode, self.config.hidden_size, truncate_dim)
        x_TW, _ = self.encoder(batch)
        return self.ops.pool(x_TW, batch.cu_seqlens, mode, normalize, truncate_dim)

    def save_pretrained(self, folder) -> None:
        """Write config.json and model.safetensors, which transformers loads back; see
        `weights.save`.
        """
        from encoder_fast.weights import save

        save(self, folder)


def backends(model: Model) -> dict[str, dict]:
    """What runs each op of `model`, and why the other backends do not: `{op: {"runs": name,
    "why_not": {name: reason}}}`.
    """
    ops = model.ops
    report = {}
    for op in dispatch.op_tables():
        others = [name for name in dispatch.BACKENDS if name != ops.chosen[op]]
        reasons = {name: dispatch.why_not(op, name, ops.request) for name in others}
        not_first = f"{ops.chosen[op]} was chosen first"
        report[op] = {
            "runs": ops.chosen[op],
            "why_not": {name: reason or not_first for name, reason in reasons.items()},
        }
    return report
