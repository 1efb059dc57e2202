"""One training step: forward with a masked-LM loss, backward, AdamW, gradients dropped.

Everyone gets the same weights, tokens and labels and the same optimiser class with the same
arguments. Dropout is 0 for everyone: otherwise no two libraries compute the same gradient. Where a
config says otherwise (BERT's 0.1), it is set to 0 in the checkpoint that all of them read.
"""

import json
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import encoder_fast as ef
from encoder_fast.benchmarks.engine import Engine, Task
from encoder_fast.benchmarks.models import Written
from encoder_fast.benchmarks.timing import Clock
from encoder_fast.benchmarks.workloads import Inputs
from encoder_fast.weights import sources

LABELLED = 0.3
"""Share of the tokens that have a label: ModernBERT's own masking rate."""
LEARNING_RATE = 1e-6
"""So small that the weights stay what they were, however many steps are timed."""
IGNORE = -100
TABLE = "encoder.embeddings.token.weight"
_CHECKED = "checked.json"
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Answer:
    """fp32 on the CPU: loss `()` and, by our names, gradients of the parameters that are compared.
    Of the token table, which is large, only the rows of the tokens in the input.
    """

    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass
class Step:
    """One model with one input. `parameters`: our name -> the model's own names for its parts.

    `loss()` runs the forward; the other methods do what follows.
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    loss: Callable[[], Tensor]
    parameters: dict[str, tuple[str, ...]]
    rows: Tensor
    clock: Clock = field(default_factory=Clock)

    def call(self) -> None:
        """One training step: what is timed."""
        self.loss().backward()
        self.optimiser.step()
        self.optimiser.zero_grad()

    def seconds(self, repeats: int = 1) -> float:
        """Wall seconds of `repeats` steps, the device's work included."""
        return self.clock.seconds(self.call, repeats)

    def answer(self) -> Answer:
        """Loss and gradients of one step; the weights stay as they are.

        Raises:
            RuntimeError: a parameter got no gradient.
        """
        loss = self.loss()
        loss.backward()
        found = {name: self._gradient(name) for name in self.parameters}
        self.optimiser.zero_grad()
        return Answer(loss.detach().float().cpu(), found)

    def _gradient(self, name: str) -> Tensor:
        parts = [self.model.get_parameter(part).grad for part in self.parameters[name]]
        if any(part is None for part in parts):
            raise RuntimeError(f"no gradient of {name}")
        if name == TABLE:
            parts = [part[self.rows.to(part.device)] for part in parts]
        # A copy even where nothing is converted: the gradient itself is dropped.
        return torch.cat([part.float().cpu() for part in parts])


def write(written: Written, scratch: Path) -> Path:
    """Write the masked-LM checkpoint of `written` into a folder of `scratch`, in fp32, without
    dropout; a head that the files lack gets random weights.
    """
    folder = scratch / f"{written.name}-masked-lm"
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="new head")
        model = ef.load(written.folder, head="masked_lm", new_head=True)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "modernbert":
        config |= _NO_DROPOUT
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    theirs = sources(model, prefixed=True)
    checked = {name: theirs[name].names for name in _compared(model)}
    (folder / _CHECKED).write_text(json.dumps(checked), encoding="utf-8")
    return folder


def _compared(model: ef.Model) -> list[str]:
    """The token table, the matrices of the first and the last layer, the head's, the last norm."""
    last = model.config.num_layer_weights - 1
    parts = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    layers = [f"encoder.layers.{i}.{part}.weight" for i in sorted({0, last}) for part in parts]
    final = "final_norm" if model.config.pre_norm else f"layers.{last}.mlp_norm"
    return [TABLE, *layers, f"encoder.{final}.weight", "head.transform.dense.weight"]


def labels(inputs: Inputs) -> tuple[tuple[int, ...], ...]:
    """What each token is to be predicted as: itself for a share `LABELLED` of the tokens, at least
    one, -100 for the others. A function of the ids alone, so that all processes agree.
    """
    ids_T = torch.tensor([i for row in inputs.ids for i in row])
    generator = torch.Generator().manual_seed(zlib.crc32(repr(inputs.ids).encode()))
    kept = torch.randperm(len(ids_T), generator=generator)[: max(1, round(LABELLED * len(ids_T)))]
    labels_T = torch.full_like(ids_T, IGNORE).index_copy(0, kept, ids_T[kept])
    return tuple(tuple(row.tolist()) for row in labels_T.split(list(inputs.lengths)))


def labelled(inputs: Inputs) -> int:
    """Number of tokens that have a label."""
    return sum(label != IGNORE for row in labels(inputs) for label in row)


def packed(inputs: Inputs, device: str) -> dict:
    """Arguments of a model that takes packed tokens: a `Batch` and labels `(T,)`, int64."""
    batch = ef.Batch.from_lists(inputs.ids, inputs.types, device=device)
    flat = torch.tensor([label for row in labels(inputs) for label in row], device=device)
    return {"input_ids": batch, "labels": flat}


def padded(inputs: Inputs, device: str) -> dict:
    """Arguments of a model that takes padded tensors, all `(B, S)`, int64; token types only where
    the input has some.
    """
    longest = max(inputs.lengths)
    rows = [(*row, *[IGNORE] * (longest - len(row))) for row in labels(inputs)]
    given = {
        "input_ids": inputs.ids_BS,
        "attention_mask": inputs.mask_BS,
        "token_type_ids": inputs.types_BS,
        "labels": torch.tensor(rows),
    }
    return {name: value.to(device) for name, value in given.items() if value is not None}


def engine_of(
    task: Task, model: nn.Module, forward: Callable, arguments: Callable, names: dict, ran
) -> Engine:
    """Engine of `model`, called as `forward(**arguments(inputs, device)).loss`."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def ready(inputs: Inputs) -> Step:
        given = arguments(inputs, task.device)
        rows = inputs.ids_BS[inputs.mask_BS.bool()].unique()
        clock = Clock(task.device)
        return Step(model, optimiser, lambda: forward(**given).loss, names, rows, clock)

    return Engine(ready, ran)


def checked(folder: Path) -> dict[str, tuple[str, ...]]:
    """Parameters whose gradients are compared: our name -> transformers' names of its parts."""
    found = json.loads((folder / _CHECKED).read_text(encoding="utf-8"))
    return {ours: tuple(theirs) for ours, theirs in found.items()}
