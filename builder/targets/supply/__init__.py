"""What a bundle is made from: `supplies` finds it, `sbom` and `mirror` are its two lists."""
