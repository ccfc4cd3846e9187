"""Benchmarks: what tpfd does per second and per byte, over real processes. Run by hand: ``python -m tests.bench``."""
