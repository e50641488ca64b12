class GuidedDecodingParams:
    """There for its name: no request of the benchmark is guided."""
