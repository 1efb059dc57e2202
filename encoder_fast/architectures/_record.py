"""The record that each architecture file fills in."""

from collections.abc import Callable
from dataclasses import dataclass

from encoder_fast.config import EncoderConfig
from encoder_fast.config_json import Settings


class Rename:
    """One module of ours and the checkpoint's names for it, without the base prefix.

    `{w}` stands for the index of a layer's weights; several names mean that ours is theirs stacked
    along axis 0; `also` are names that old files use, or copies of the same values. The table reads
    files and writes them: data only.
    """

    def __init__(self, ours: str, *theirs: str, also: tuple[str, ...] = ()):
        self.ours, self.theirs, self.also = ours, theirs, also


@dataclass(frozen=True)
class Head:
    """How a family builds and stores one head.

    Attributes:
        kind: a class name in `heads.KINDS`.
        hf_class: the transformers class whose files these are.
        renames: head modules (ours begin with `head.`); names are absolute in the file.
        options: arguments of the class.
        pooler: the head reads the encoder's pooler.
    """

    kind: str
    hf_class: str
    renames: tuple[Rename, ...] = ()
    options: Callable[[EncoderConfig], dict] = lambda config: {}
    pooler: bool = False


@dataclass(frozen=True)
class Architecture:
    """One family.

    Attributes:
        name: our name; model_types: what config.json calls it, with the transformers class prefix
            of each.
        prefix: of encoder weights in files of models with a head (`"bert."`).
        config: config.json -> `EncoderConfig`.
        renames: encoder modules.
        stray: regular expressions of keys in files that hold no weights of ours.
        layer_fields: index of a layer's weights -> further fields of `renames` templates.
        heads: by public head name. Families without a head leave it out.
    """

    name: str
    model_types: dict[str, str]
    prefix: str
    config: Callable[[Settings], EncoderConfig]
    renames: tuple[Rename, ...]
    heads: dict[str, Head]
    pooler: bool
    stray: tuple[str, ...] = ()
    layer_fields: Callable[[EncoderConfig, int], dict[str, int]] = lambda config, w: {}
