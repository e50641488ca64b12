"""Tunes a deployment by starts on real hardware, with a ledger that the same command resumes."""
