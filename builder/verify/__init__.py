"""The verification of bundles, all of it offline."""
