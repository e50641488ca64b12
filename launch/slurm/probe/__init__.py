"""A site profile from what a cluster took when it was tried, not from what it lists."""
