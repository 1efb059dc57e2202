"""The environment variables of the package, read here and nowhere else.

ENCODER_FAST_PROGRESS       1 shows the bar at once, 0 never; `progress=` of `TextEncoder.encode`
ENCODER_FAST_BATCH_TOKENS   tokens in one forward pass; `--batch-tokens` of `encoder-fast embed`

An argument always wins over its variable. Two more are not read here:

ENCODER_FAST_CPU_ISA        the native engine reads it, once: the tier of instructions to use, of
                            those that `encoder-fast doctor` lists
ENCODER_FAST_BUILD          setup.py reads it: whether an install builds that engine
"""

import os

BATCH_TOKENS = 16384
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def progress() -> bool | None:
    """True, False, or None where `ENCODER_FAST_PROGRESS` is not set; ValueError on another word."""
    word = os.environ.get("ENCODER_FAST_PROGRESS", "").strip().lower()
    if not word:
        return None
    if word not in _SWITCH:
        raise ValueError(f"ENCODER_FAST_PROGRESS is {word!r}; allowed: {', '.join(_SWITCH)}")
    return _SWITCH[word]


def batch_tokens() -> int:
    """Tokens in one forward pass: `ENCODER_FAST_BATCH_TOKENS`, or 16384 where it is not set."""
    word = os.environ.get("ENCODER_FAST_BATCH_TOKENS", "").strip()
    if not word:
        return BATCH_TOKENS
    if not word.isdecimal() or int(word) == 0:
        raise ValueError(f"ENCODER_FAST_BATCH_TOKENS is {word!r}; allowed: a positive whole number")
    return int(word)
