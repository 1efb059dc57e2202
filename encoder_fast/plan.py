"""The arguments of one `TextEncoder.encode`, checked before any work and joined with the folder's
own settings."""

import dataclasses
import numbers
from collections.abc import Callable, Iterable

import numpy as np

from encoder_fast.recipe import Recipe, pooling_modes
from encoder_fast.settings import BATCH_TOKENS

Pooling = str | Iterable[str] | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """How texts become vectors. `width` is that of the vectors, `skip_tokens` the length of a
    prompt that takes no part in pooling."""

    pooling: tuple[str, ...]
    normalize: bool
    truncate_dim: int | None
    width: int
    batch_tokens: int
    prompt: str
    skip_tokens: int


def make_plan(
    recipe: Recipe,
    hidden_size: int,
    prompt_length: Callable[[str], int],
    *,
    pooling: Pooling = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Plan:
    """The keyword arguments are those of `encode`; TypeError or ValueError names a wrong one.

    prompt_length   text -> tokens that it takes at the front of a text
    """
    modes = recipe.pooling if pooling is None else pooling_modes(pooling, "encode")
    if len(recipe.after) and len(modes) != len(recipe.pooling):
        raise ValueError(
            f"pooling {pooling!r} gives {len(modes)} vectors; the layers after it in "
            f"{recipe.encoder_folder} take {len(recipe.pooling)}"
        )
    width = recipe.output_width or len(modes) * hidden_size
    truncate_dim = recipe.truncate_dim if truncate_dim is None else truncate_dim
    if truncate_dim is not None:
        width = truncate_dim = _whole_number("truncate_dim", truncate_dim, width)
    if not isinstance(normalize, bool | np.bool_ | None):
        raise TypeError(f"normalize must be True, False or None, got {normalize!r}")
    text = _prompt_text(recipe, prompt, prompt_name)
    return Plan(
        pooling=modes,
        normalize=recipe.normalize if normalize is None else bool(normalize),
        truncate_dim=truncate_dim,
        width=width,
        batch_tokens=_whole_number("batch_tokens", batch_tokens, None),
        prompt=text,
        skip_tokens=prompt_length(text) if text and not recipe.include_prompt else 0,
    )


def _prompt_text(recipe: Recipe, prompt: str | None, name: str | None) -> str:
    if prompt is not None and name is not None:
        raise ValueError(f"give prompt or prompt_name ({name!r}), not both")
    for argument, value in (("prompt", prompt), ("prompt_name", name)):
        if not isinstance(value, str | None):
            raise TypeError(f"{argument} must be a string, got {type(value).__name__}")
    if prompt is not None:
        return prompt
    name = recipe.default_prompt_name if name is None else name
    if name is None:
        return ""
    if name in recipe.prompts:
        return recipe.prompts[name]
    raise ValueError(f"prompt_name {name!r} is not known; allowed: {list(recipe.prompts)}")


def _whole_number(name: str, value: int, largest: int | None) -> int:
    # numpy's integers, which come out of counting with numpy, are whole numbers too.
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1 or (largest is not None and value > largest):
        allowed = "1 or more" if largest is None else f"1 to {largest}"
        raise ValueError(f"{name} is {value}; allowed: {allowed}")
    return int(value)
