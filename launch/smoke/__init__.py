"""The smoke suite: what a fresh server must do before anyone depends on it."""
