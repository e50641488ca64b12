"""Deployment and facts in, plan and bundle out: no network, no GPU, no clock, no environment."""

__version__ = "0.3.0"
