"""Upgrade: a deployment for another release of its engine, or with the digests of its images.

`move` makes the new deployment, `comparison` compares the plans of both bundles and `tables` the
option tables of both releases, `page` writes down what changes and how to roll it. `pinning` asks
registries for the digests of images.
"""
