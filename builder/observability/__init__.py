"""Metrics, signals, alerts and objectives of servers, as rows of data in no target's format.

`metrics` are the metric names of servers and exporters, `signals` server-independent quantities,
`alerts` what a signal shows and what to do about it, and the objectives.
"""
