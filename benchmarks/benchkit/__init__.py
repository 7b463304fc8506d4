"""The parts of `benchmarks/bench.py`: brokers, processes, scenarios, machine facts, the report."""
