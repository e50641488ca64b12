"""Benchmarks: load on an endpoint, and client-side throughput and latency."""
