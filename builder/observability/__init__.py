"""Metrics, signals, alerts and objectives of servers: rows of data, in no target's format.

`metrics` are the names that servers and exporters use, `signals` words of our own that hold for all
of them, `alerts` what is wrong when a signal says so and what to do, `slo` the objectives.
"""
