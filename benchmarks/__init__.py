"""encoder_fast.benchmarks: how fast is each engine on this machine?

Installed from benchmarks/ (see setup.py). `run.py` is the table of contents, README.md the method.
"""
