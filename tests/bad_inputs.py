"""Calls with bad input: the call, the error type, and what its one sentence must contain."""

import tiny
import torch

import encoder_fast as ef

IDS = tiny.ids(2, 5)
LONG_MASK = torch.ones(2, 6)


def of(**arguments):
    return lambda model: model(**({"input_ids": IDS} | arguments))


def changed(b: int, t: int, value: int, base=IDS):
    out = base.clone()
    out[b, t] = value
    return out


def packed(ids, offsets, **more):
    offsets = offsets if isinstance(offsets, torch.Tensor) else torch.tensor(offsets)
    return lambda model: model(ef.Batch.from_packed(ids, offsets, **more))


def lists(*args, **more):
    return lambda model: model(ef.Batch.from_lists(*args, **more))


T6 = tiny.ids(1, 6)[0]

# call, error type, and patterns that its one sentence must contain
BAD = {
    "ids of one dimension": (of(input_ids=IDS[0]), ValueError, [r"input_ids", r"\(5,\)", "2 dim"]),
    "ids of three dimensions": (of(input_ids=IDS[None]), ValueError, ["input_ids", r"\(1, 2, 5\)"]),
    "float ids": (of(input_ids=IDS.float()), TypeError, ["input_ids", "float32", "integer"]),
    "bool ids": (of(input_ids=IDS > 5), TypeError, ["input_ids", "bool", "integer"]),
    "ids as a list": (of(input_ids=IDS.tolist()), TypeError, ["input_ids", "list", "tensor"]),
    "no input": (of(input_ids=None), ValueError, ["input_ids", "inputs_embeds", "neither"]),
    "both inputs": (of(inputs_embeds=torch.ones(2, 5, 32)), ValueError, ["inputs_embeds", "both"]),
    "id of the vocabulary's size": (
        of(input_ids=changed(1, 2, 97)),
        ValueError,
        ["input_ids", "97", "0 to 96"],
    ),
    "negative id": (of(input_ids=changed(0, 0, -1)), ValueError, ["input_ids", "-1", "0 to 96"]),
    "id of 2^31": (
        of(input_ids=changed(0, 0, 2**31)),
        ValueError,
        ["input_ids", str(2**31), "0 to 96"],
    ),
    "mask of another shape": (
        of(attention_mask=LONG_MASK),
        ValueError,
        ["attention_mask", r"\(2, 6\)", r"\(2, 5\)"],
    ),
    "mask of three dimensions": (
        of(attention_mask=torch.ones(2, 5, 5)),
        ValueError,
        ["attention_mask", r"\(2, 5, 5\)", r"\(2, 5\)"],
    ),
    "mask of four dimensions": (
        of(attention_mask=torch.ones(2, 1, 5, 5)),
        ValueError,
        ["attention_mask", "packed"],
    ),
    "mask value 2": (
        of(attention_mask=torch.full((2, 5), 2)),
        ValueError,
        ["attention_mask", "2", "0 or 1"],
    ),
    "additive mask": (
        of(attention_mask=torch.full((2, 5), -1e9)),
        ValueError,
        ["attention_mask", "0 or 1"],
    ),
    "NaN in the mask": (
        of(attention_mask=torch.full((2, 5), float("nan"))),
        ValueError,
        ["attention_mask", "nan"],
    ),
    "mask as a list": (
        of(attention_mask=[[1] * 5] * 2),
        TypeError,
        ["attention_mask", "list", "tensor"],
    ),
    "type out of range": (
        of(token_type_ids=torch.full((2, 5), 2)),
        ValueError,
        ["token_type_ids", "2", "0 to 1"],
    ),
    "negative type": (
        of(token_type_ids=torch.full((2, 5), -1)),
        ValueError,
        ["token_type_ids", "-1", "0 to 1"],
    ),
    "types of another shape": (
        of(token_type_ids=torch.zeros(2, 4).long()),
        ValueError,
        ["token_type_ids", r"\(2, 4\)"],
    ),
    "float types": (of(token_type_ids=torch.zeros(2, 5)), TypeError, ["token_type_ids", "float32"]),
    "position beyond the table": (
        of(position_ids=torch.full((2, 5), 42)),
        ValueError,
        ["position_ids", "42", "0 to 41"],
    ),
    "negative position": (
        of(position_ids=torch.full((2, 5), -1)),
        ValueError,
        ["position_ids", "-1", "0 to 41"],
    ),
    "positions of another shape": (
        of(position_ids=torch.zeros(5).long()),
        ValueError,
        ["position_ids", r"\(5,\)"],
    ),
    "C27 text too long": (of(input_ids=tiny.ids(1, 43)), ValueError, ["input_ids", "43", "42"]),
    "C27 packed text too long": (lists([[3] * 5, [3] * 43]), ValueError, ["43", "42"]),
    "embeddings of another width": (
        of(input_ids=None, inputs_embeds=torch.ones(2, 5, 31)),
        ValueError,
        ["inputs_embeds", "31", "32"],
    ),
    "integer embeddings": (
        of(input_ids=None, inputs_embeds=torch.ones(2, 5, 32).long()),
        TypeError,
        ["inputs_embeds", "int64"],
    ),
    "embeddings of two dimensions": (
        of(input_ids=None, inputs_embeds=torch.ones(5, 32)),
        ValueError,
        ["inputs_embeds"],
    ),
    "mask beside a batch": (
        lambda m: m(ef.Batch.from_lists([[3]]), torch.ones(1, 1)),
        ValueError,
        ["attention_mask", "Batch"],
    ),
    "attention probabilities": (
        of(output_attentions=True),
        ValueError,
        ["output_attentions", "True"],
    ),
    "no items": (
        of(num_items_in_batch=0),
        ValueError,
        ["num_items_in_batch", "0", "positive number"],
    ),
    "labels as a list": (of(labels=IDS.tolist()), TypeError, ["labels", "list", "tensor"]),
    "both pair labels": (
        of(next_sentence_label=IDS[:, 0], sentence_order_label=IDS[:, 0]),
        ValueError,
        ["next_sentence_label", "sentence_order_label", "both"],
    ),
    "labels without a head": (of(labels=IDS), ValueError, ["labels", "None"]),
    "C18 offsets that start late": (packed(T6, [1, 6]), ValueError, ["cu_seqlens", "1", "0 to 6"]),
    "C18 offsets that end early": (packed(T6, [0, 5]), ValueError, ["cu_seqlens", "5", "0 to 6"]),
    "C18 offsets that end late": (packed(T6, [0, 7]), ValueError, ["cu_seqlens", "7", "0 to 6"]),
    "C18 offsets that decrease": (
        packed(T6, [0, 4, 2, 6]),
        ValueError,
        ["cu_seqlens", "4", "2", "decrease"],
    ),
    "C18 negative offsets": (packed(T6, [0, -2, 6]), ValueError, ["cu_seqlens", "-2"]),
    "C18 no offsets": (
        packed(T6, torch.zeros(0, dtype=torch.int32)),
        ValueError,
        ["cu_seqlens", "no offset"],
    ),
    "C18 float offsets": (packed(T6, [0.0, 6.0]), TypeError, ["cu_seqlens", "float32", "integer"]),
    "C18 offsets of two dimensions": (
        packed(T6, [[0, 6]]),
        ValueError,
        ["cu_seqlens", r"\(1, 2\)"],
    ),
    "C18 max_seqlen too small": (
        packed(T6, [0, 2, 6], max_seqlen=3),
        ValueError,
        ["max_seqlen", "3", "4"],
    ),
    "packed ids of two dimensions": (packed(IDS, [0, 10]), ValueError, ["input_ids", r"\(2, 5\)"]),
    "packed types of another length": (
        packed(T6, [0, 6], token_type_ids=torch.zeros(5).long()),
        ValueError,
        ["token_type_ids", r"\(5,\)", r"\(6,\)"],
    ),
    "text in place of ids": (lists("some text"), TypeError, ["input_ids", "str"]),
    "texts in place of ids": (lists(["some text"]), TypeError, ["input_ids", "str"]),
    "float id in a list": (lists([[3, 4.5]]), TypeError, ["input_ids", "4.5", "float"]),
    "None in a list": (lists([[3, None]]), TypeError, ["input_ids", "None"]),
    "bool in a list": (lists([[True]]), TypeError, ["input_ids", "True"]),
    "id beyond 64 bits": (lists([[2**64]]), ValueError, ["input_ids", str(2**64)]),
    "flat list": (lists([3, 4]), TypeError, ["input_ids", "int", "list"]),
    "types of other lengths": (
        lists([[3, 4]], [[0]]),
        ValueError,
        ["token_type_ids", r"\(1,\)", r"\(2,\)"],
    ),
    "unknown pooling": (
        lambda m: m.pool(ef.Batch.from_lists([[3]]), "median"),
        ValueError,
        ["pooling", "median", "mean"],
    ),
    "truncate_dim 0": (
        lambda m: m.pool(ef.Batch.from_lists([[3]]), truncate_dim=0),
        ValueError,
        ["truncate_dim", "0", "32"],
    ),
    "truncate_dim beyond the width": (
        lambda m: m.pool(ef.Batch.from_lists([[3]]), truncate_dim=33),
        ValueError,
        ["truncate_dim", "33", "32"],
    ),
}
