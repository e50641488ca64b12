"""The page of the keys of all targets is what their classes say."""

from __future__ import annotations

from maintenance import target_keys


def test_the_page_is_what_the_classes_say() -> None:
    """`python -m maintenance.target_keys` writes it."""
    page = target_keys.page()
    assert target_keys.PAGE.read_text(encoding="utf-8") == page
    assert "`load_gb_per_s` (number: `0.35`)" in page
    assert "`max_replicas` (integer, required)" in page
