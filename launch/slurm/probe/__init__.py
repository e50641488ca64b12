"""A site profile of a cluster from what works there when it is tried, not from what it lists."""
