"""The engines that can be deployed: each with its data and vocabulary."""
