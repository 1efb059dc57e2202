"""The errors that users see. All are `ValueError`s whose text names what came and what is
allowed.
"""

from encoder_fast.kernels.dispatch import BackendError

__all__ = ["BackendError", "ConfigError", "WeightsError"]


class ConfigError(ValueError):
    """A config.json that this package cannot compute exactly."""


class WeightsError(ValueError):
    """Weights that are missing, unexpected, misshaped, corrupt or unsafe."""
