"""The families, one file each. To add one: write the file and name it in `ALL`."""

from encoder_fast.architectures import albert, bert, electra, modernbert, roberta
from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.errors import ConfigError

__all__ = ["ALL", "Architecture", "Head", "Rename", "architecture_of", "by_name"]

ALL = (bert.ARCH, roberta.ARCH, albert.ARCH, electra.ARCH, modernbert.ARCH)


def architecture_of(model_type: str | None) -> Architecture:
    """The family that a config.json's `model_type` names.

    Raises:
        ConfigError: none does; the text lists all that are known.
    """
    for architecture in ALL:
        if isinstance(model_type, str) and model_type in architecture.model_types:
            return architecture
    known = sorted(t for architecture in ALL for t in architecture.model_types)
    raise ConfigError(f"model_type: got {model_type!r}, allowed are {known}")


def by_name(name: str) -> Architecture:
    """The family with our name `name` (`EncoderConfig.architecture`)."""
    return next(architecture for architecture in ALL if architecture.name == name)
