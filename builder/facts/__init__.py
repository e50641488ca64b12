"""What is known: checkpoints, architectures, hardware, releases, published results."""
