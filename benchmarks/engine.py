"""What is compared: a contender builds an engine for a task; an engine gets ready for one input;
what is ready can be timed and read. Everything outside `Ready.call` is not timed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from encoder_fast.benchmarks.timing import Clock
from encoder_fast.benchmarks.workloads import Inputs


class CannotRun(Exception):
    """An engine does not take this input; the message says why, without the engine's name."""


@dataclass(frozen=True)
class Task:
    """What an engine is built for.

    `folder` holds config.json, model.safetensors (fp32) and a tokenizer. `scratch` is shared by
    all processes of one run: a converted model may be kept there under a name that holds the
    contender, the model and the dtype.
    """

    model: str
    folder: Path
    dtype: str
    device: str
    threads: int
    scratch: Path

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the weights in torch; int8 engines start from fp32."""
        return torch.float32 if self.dtype == "int8" else getattr(torch, self.dtype)


@dataclass
class Ready:
    """One engine with one input, converted to what the engine takes.

    `call` does the timed work and may leave the result on the device. `read` turns the result into
    fp32 on the CPU: `(T, W)`, the last hidden state of the real tokens in the order of the texts,
    or, where `pooled` is set, `(B, W)`, the mean over each text, not normalised.
    """

    call: Callable[[], object]
    read: Callable[[object], Tensor]
    clock: Clock = field(default_factory=Clock)
    pooled: bool = False

    def output(self) -> Tensor:
        """One run, read."""
        return self.read(self.call())

    def seconds(self, repeats: int = 1) -> float:
        """Wall seconds of `repeats` runs, the device's work included."""
        return self.clock.seconds(self.call, repeats)


@dataclass
class Engine:
    """A built contender. `ready(inputs)` may raise `CannotRun`. `ran` says what does the work, as
    one line or as op -> backend. `close` frees what dropping the object would not.
    """

    ready: Callable[[Inputs], Ready]
    ran: str | dict[str, str] = ""
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Contender:
    """One way to run a model.

    `why_not(task)` is None or the reason why it cannot take part, found without building anything.
    `build(task)` may raise anything: the harness reports it and goes on. `slow` contenders take
    part only when named or in a full run. `note` is printed under the table. `from_text` ones run
    a tokenizer first; a quick run leaves out their memory, which is that of the model below.
    """

    name: str
    build: Callable[[Task], Engine]
    why_not: Callable[[Task], str | None]
    slow: bool = False
    note: str = ""
    from_text: bool = False


def padded(call: Callable[..., Tensor], inputs: Inputs, device: str = "cpu") -> Ready:
    """`Ready` of an engine that takes padded tensors on `device` and returns `(B, S, W)`.

    `call(ids_BS, mask_BS, types_BS)`; `types_BS` is None where the model has no token types.
    """
    given = (inputs.ids_BS, inputs.mask_BS, inputs.types_BS)
    given = tuple(x if x is None else x.to(device) for x in given)
    real_BS = inputs.mask_BS.bool()
    return Ready(
        lambda: call(*given),
        lambda hidden_BSW: hidden_BSW.detach().cpu().float()[real_BS],
        Clock(device),
    )
