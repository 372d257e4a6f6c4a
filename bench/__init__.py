"""The benchmarks: `python -m bench [NAME ...] [--json OUT]`. docs/BENCHMARKS.md says how and what came out."""
