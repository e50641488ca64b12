"""A bundle in, a running server and the evidence it leaves out."""
