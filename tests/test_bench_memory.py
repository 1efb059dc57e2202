"""Peak memory of an engine that is alone in a process."""

import bench_tiny
import pytest
import torch
from bench_engine_file import INPUTS, LARGER, hosting

from encoder_fast.benchmarks import contenders, memory, remote
from encoder_fast.benchmarks.workloads import inputs

needs_peak = pytest.mark.skipif(memory.why_not() is not None, reason=str(memory.why_not()))


@pytest.fixture
def host(tmp_path):
    """`start` in a folder of the test, which ends the workers."""
    with hosting(tmp_path) as run:
        yield run


@needs_peak
def test_memory_is_what_a_run_adds(host):
    engine = host(
        """
        def work(ids):
            numpy.ones(len(ids) * 2**17)
        """
    )
    larger, smaller = engine.memory([LARGER, INPUTS])
    # 8 bytes times 2**17 is one MiB a token.
    assert larger["added_mib"] == pytest.approx(48, rel=0.2)
    assert smaller["added_mib"] == pytest.approx(5, rel=0.2)
    assert larger["peak_mib"] > larger["added_mib"] and larger["peak_mib"] < 1000


@needs_peak
def test_memory_that_an_engine_keeps_counts(host):
    keeps = """
    kept = []

    def work(ids):
        if len(ids) == 5:
            kept.append(numpy.ones(2**23))
        numpy.ones(len(ids) * 2**17)
    """
    larger, smaller = host(keeps).memory([LARGER, INPUTS])
    # 64 MiB stay from the smaller input, which is measured first.
    assert smaller["added_mib"] == pytest.approx(64 + 5, rel=0.2)
    assert larger["added_mib"] == pytest.approx(64 + 48, rel=0.2)


@needs_peak
def test_an_input_that_fails_leaves_the_smaller_ones(host):
    fails = """
    def work(ids):
        if len(ids) == 48:
            raise MemoryError("9 GiB")
    """
    larger, smaller = host(fails).memory([LARGER, INPUTS])
    assert larger == {"reason": "MemoryError: 9 GiB"} and smaller["peak_mib"] > 0


@needs_peak
def test_the_warm_up_before_memory_is_a_short_text(host, tmp_path):
    log = tmp_path / "lengths"
    engine = host(f"def work(ids): print(len(ids), file=open({str(log)!r}, 'a'))")
    engine.memory([LARGER, INPUTS])
    assert log.read_text(encoding="utf-8").split() == ["16", "5", "48"]


@pytest.mark.parametrize("name", ["transformers sdpa", "encoder_fast torch"])
def test_a_contender_in_a_worker_computes_what_it_computes_here(name, tmp_path):
    contender = contenders.CONTENDERS[name]
    model = bench_tiny.written("modernbert-base", tmp_path)
    task = bench_tiny.task(model, tmp_path)
    drawn = inputs(bench_tiny.MIXED, model.folder)
    engine = remote.remote_engine(remote.HERE, name, task)
    try:
        there = engine.ready(drawn)
        here = contender.build(task).ready(drawn)
        assert torch.equal(there.output(), here.output())
        assert there.seconds(2) > 0 and there.pooled == here.pooled
        if memory.why_not() is None:
            (found,) = engine.memory([drawn])
            assert 0 <= found["added_mib"] < found["peak_mib"]
    finally:
        engine.close()
