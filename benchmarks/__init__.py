"""Measurements of what this toolkit ships, each against a baseline on the same machine."""
