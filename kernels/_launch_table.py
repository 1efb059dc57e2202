"""Measured launches. Written by `python -m encoder_fast.benchmarks.tune`; not by hand.

Target -> key -> numbers that beat what `_launches.py` held before, and how they were measured.
Keys start with the kind of device ("cpu", "sm_90") and the dtype.
"""

TABLE = {
    "window": {},
}
