"""Benchmarks against other libraries; each writes result files, and README.md shows all of them."""
