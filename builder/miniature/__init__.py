"""Tiny checkpoints for rehearsals: same architecture and layout, random weights."""
