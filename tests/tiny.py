"""Tiny models of transformers, and ours read from the files that it saved.

`MB BE RO AL EL` are a ModernBERT, a BERT, a RoBERTa, an ALBERT and an ELECTRA of width 32; `XL` and
`CA` are XLM-R and CamemBERT, which share RoBERTa's code. Every matrix is drawn with standard
deviation 0.2 (at the default 0.02 a whole missing layer hardly shows), and biases, norm weights and
padding rows are drawn too, so that a dropped one is seen.
"""

import atexit
import copy
import functools
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.modernbert import modeling_modernbert

import encoder_fast as ef

FAMILIES = ("MB", "BE", "RO", "AL", "EL")
EVERY_TYPE = (*FAMILIES, "XL", "CA")
CLASS_PREFIX = {
    "MB": "ModernBert",
    "BE": "Bert",
    "RO": "Roberta",
    "AL": "Albert",
    "EL": "Electra",
    "XL": "XLMRoberta",
    "CA": "Camembert",
}
CLASS_SUFFIX = {
    None: "Model",
    "masked_lm": "ForMaskedLM",
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "pretraining": "ForPreTraining",
}
HEADS_OF = {
    family: tuple(
        h for h in CLASS_SUFFIX if h and (h != "pretraining" or family in ("BE", "AL", "EL"))
    )
    for family in EVERY_TYPE
}
EVERY_HEAD = [(family, head) for family in FAMILIES for head in HEADS_OF[family]]
PAD = {"MB": 0, "BE": 0, "RO": 1, "AL": 0, "EL": 0, "XL": 1, "CA": 1}
LENGTHS = (1, 2, 7, 16, 33)

_COMMON = {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
_POST_NORM = {
    "num_hidden_layers": 2,
    "max_position_embeddings": 42,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
_CHANGES = {
    "MB": {
        "num_hidden_layers": 4,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "BE": _POST_NORM,
    "RO": _POST_NORM | _ROBERTA,
    "XL": _POST_NORM | _ROBERTA,
    "CA": _POST_NORM | _ROBERTA,
    "AL": _POST_NORM | {"embedding_size": 16, "classifier_dropout_prob": 0.0},
    "EL": _POST_NORM | {"embedding_size": 16},
}


@pytest.fixture(autouse=True)
def one_thread():
    """For test files to import: at these sizes a second thread only waits, up to 8 ms a call."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def hf_config(family: str, **changes):
    """transformers' config of a tiny model."""
    return getattr(transformers, f"{CLASS_PREFIX[family]}Config")(
        **_COMMON | _CHANGES[family] | changes
    )


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> None:
    """Draw every parameter from N(0, 0.2), norm weights around 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, device="cpu") * 0.2
        is_norm_weight = parameter.ndim == 1 and bool((parameter == 1).all())
        parameter.copy_(1 + drawn if is_norm_weight else drawn)


def _freeze(value):
    if isinstance(value, dict):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    return tuple(value) if isinstance(value, list) else value


_cache: dict = {}


def _entry(family: str, head: str | None, changes: dict):
    key = family, head, _freeze(changes)
    if key not in _cache:
        config = hf_config(family, **changes)
        config._attn_implementation = "eager"
        # On the CPU, whichever device the first test that asks for it runs on.
        with torch.device("cpu"):
            model = getattr(transformers, CLASS_PREFIX[family] + CLASS_SUFFIX[head])(config).eval()
        randomise(model)
        folder = _scratch() / str(len(_cache))
        model.save_pretrained(folder)
        _cache[key] = model, folder
    return _cache[key]


@functools.cache
def _scratch() -> Path:
    """A folder that lives as long as the test session."""
    folder = tempfile.TemporaryDirectory(prefix="encoder_fast_tiny_")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def hf_model(
    family: str, head: str | None = None, dtype=torch.float32, attention="eager", **changes
):
    """A fresh copy of transformers' model in eval mode; same arguments, same weights."""
    model = copy.deepcopy(_entry(family, head, changes)[0]).to(torch.get_default_device(), dtype)
    model.set_attn_implementation(attention)
    return model


def saved(family: str, head: str | None = None, **changes) -> Path:
    """The folder that transformers wrote that model to."""
    return _entry(family, head, changes)[1]


def our_model(
    family: str, head: str | None = None, dtype=None, backend="auto", precision=None, **changes
) -> ef.Model:
    """Our model with the same weights, read from that folder."""
    files = {"rerank": "sequence_classification", "embedding": None}.get(head, head)
    folder, device = saved(family, files, **changes), torch.get_default_device()
    return ef.load(folder, head, dtype, device, backend, precision=precision)


def ids(rows: int, columns: int) -> Tensor:
    """`3 + (7 b + 5 t^2 + 11 t) % 90`: no special ids, `(rows, columns)`."""
    b, t = torch.arange(rows)[:, None], torch.arange(columns)
    return 3 + (7 * b + 5 * t * t + 11 * t) % 90


def padded(family: str, lengths=LENGTHS, columns: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids `(B, S)` with the family's pad id after each text, and the int64 mask."""
    columns = columns or max(lengths)
    mask_BS = (torch.arange(columns) < torch.tensor(lengths)[:, None]).long()
    return torch.where(mask_BS == 1, ids(len(lengths), columns), PAD[family]), mask_BS


def types(family: str, rows: int, columns: int) -> Tensor | None:
    """Token types: ones from the middle on where the family has two."""
    if family not in ("BE", "AL", "EL"):
        return None
    return (torch.arange(columns) >= columns // 2).long().repeat(rows, 1)


def inputs(family: str, lengths=LENGTHS, columns: int | None = None) -> dict[str, Tensor]:
    """Keyword arguments of a padded call."""
    ids_BS, mask_BS = padded(family, lengths, columns)
    given = {
        "input_ids": ids_BS,
        "attention_mask": mask_BS,
        "token_type_ids": types(family, *ids_BS.shape),
    }
    return {name: value for name, value in given.items() if value is not None}


def batch_of(arguments: dict[str, Tensor]) -> ef.Batch:
    """The same texts without padding, from lists."""
    lengths = arguments["attention_mask"].sum(1).tolist()

    def lists(name):
        if name not in arguments:
            return None
        return [row[:n].tolist() for row, n in zip(arguments[name], lengths, strict=True)]

    return ef.Batch.from_lists(lists("input_ids"), lists("token_type_ids"))


def alone(model, arguments: dict[str, Tensor], b: int, **more):
    """`model`'s output for the real tokens of row b by themselves."""
    real = arguments["attention_mask"][b] == 1
    row = {
        name: value[b : b + 1, real]
        for name, value in arguments.items()
        if name != "attention_mask"
    }
    return model(**row, **more)


def real_rows(x_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """The real tokens of a padded tensor, `(T, ...)`."""
    return x_BS[mask_BS == 1]


@contextmanager
def exact_modernbert():
    """transformers' ModernBERT rounds rotary angles and softmax to fp32; here it uses fp64."""

    def rotary(self, x, position_ids, layer_type):
        D = self.config.hidden_size // self.config.num_attention_heads
        theta = self.config.rope_parameters[layer_type]["rope_theta"]
        frequencies = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
        angles = (position_ids[..., None].double() * frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    def rotate(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin, turn = cos.unsqueeze(1), sin.unsqueeze(1), modeling_modernbert.rotate_half
        return q * cos + turn(q) * sin, k * cos + turn(k) * sin

    def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        scores = query @ key.transpose(2, 3) * scaling
        p = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return (p @ value).transpose(1, 2).contiguous(), p

    with (
        mock.patch.object(modeling_modernbert.ModernBertRotaryEmbedding, "forward", rotary),
        mock.patch.object(modeling_modernbert, "apply_rotary_pos_emb", rotate),
        mock.patch.object(modeling_modernbert, "eager_attention_forward", attention),
    ):
        yield


def exact(family: str, head: str | None = None, **changes):
    """transformers' model in fp64, as a function that really computes in it."""
    model = hf_model(family, head, torch.float64, **changes)

    def call(*args, **kwargs):
        with exact_modernbert():
            return model(*args, **kwargs)

    call.model = model
    return call


def targets(family: str, head: str | None, mask_BS: Tensor, classes: int = 3) -> dict[str, Tensor]:
    """Label arguments of `head` for a padded call; token labels of padding are -100."""
    B, S = mask_BS.shape
    b, t = torch.arange(B)[:, None], torch.arange(S)
    words_BS = torch.where((mask_BS == 1) & (t % 3 == 0), (7 * t + 5 * b) % 97, -100)
    if head == "masked_lm":
        return {"labels": words_BS}
    if head == "sequence_classification":
        return {"labels": torch.arange(B) % classes}
    if head == "token_classification":
        return {"labels": torch.where((mask_BS == 1) & ((t + b) % 4 < 3), (t + b) % classes, -100)}
    if head == "question_answering":
        last_B = mask_BS.sum(1) - 1
        return {"start_positions": last_B // 2, "end_positions": last_B}
    if head == "pretraining" and family == "EL":
        return {"labels": ((t + b) % 4 == 0).long()}
    if head == "pretraining":
        pair = {"BE": "next_sentence_label", "AL": "sentence_order_label"}[family]
        return {"labels": words_BS, pair: torch.arange(B) % 2}
    return {}


def label_changes(head: str | None, classes: int = 3) -> dict:
    """Config changes that give a classifier `classes` outputs."""
    return (
        {"num_labels": classes}
        if head in ("sequence_classification", "token_classification")
        else {}
    )


def packed_targets(labels: dict[str, Tensor], mask_BS: Tensor) -> dict[str, Tensor]:
    """The labels of a padded call for the same texts as a `Batch`."""
    return {k: real_rows(v, mask_BS) if v.shape == mask_BS.shape else v for k, v in labels.items()}
