"""When an optimiser last wrote a parameter.

Copies of weights in another layout are renewed when the weight's version counter moves. Fused
optimisers (`AdamW(fused=True)`) write parameters without moving it.
"""

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

_LAST: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Parameter -> number of the last step of an optimiser that has it."""

_taken = 0


def _after_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    global _taken
    _taken += 1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _LAST[parameter] = _taken


register_optimizer_step_post_hook(_after_step)


def steps_taken() -> int:
    """How many optimiser steps this process has taken."""
    return _taken


def last_step(parameter: Tensor) -> int | None:
    """Number of the last step of an optimiser that has `parameter`; None if there was none."""
    return _LAST.get(parameter)
