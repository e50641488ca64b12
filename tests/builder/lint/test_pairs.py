"""Option files of prefill and decode workers beside each other, outside of a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.lint import CheckOptions, check
from builder.lint.model import side_of
from tests.tables import by_table

TRANSCEIVER = "cache_transceiver_config: {backend: UCX}\n"
PREFILL = "kv_cache_config: {dtype: fp8, tokens_per_block: 64}\n" + TRANSCEIVER
DECODE = "kv_cache_config: {dtype: auto, tokens_per_block: 32}\n" + TRANSCEIVER


def found(folder: Path, release: str = "1.2.1") -> list[tuple[str, str, int]]:
    report = check([folder], CheckOptions((release,)), lambda path, overrides: ())
    rows = [row for row in report.findings if row.rule.startswith("disagg-")]
    return [(Path(row.where).name, row.rule, row.location.line) for row in rows]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


@pytest.mark.parametrize(
    ("one", "two"),
    [("prefill", "decode"), ("ctx_config", "gen_config"), ("model-context", "model-generation")],
)
def test_two_files_of_one_folder_are_compared(one: str, two: str, tmp_path: Path) -> None:
    write(tmp_path, **{one: PREFILL, two: DECODE})
    assert found(tmp_path) == [
        (f"{two}.yaml", "disagg-kv-dtype", 1),
        (f"{two}.yaml", "disagg-tokens-per-block", 1),
    ]
    assert found(tmp_path, "1.3.0rc17")  # by its neighbours


def test_files_of_different_services_are_not(tmp_path: Path) -> None:
    write(tmp_path, llama_prefill=PREFILL, qwen_decode=DECODE, regenerate=DECODE)
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", llama_decode=DECODE)
    assert found(tmp_path) == []


def test_mtp_on_decode_workers_beside_prefill_without_it_is_said(tmp_path: Path) -> None:
    drafts = "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 1}\n"
    write(tmp_path, prefill=PREFILL, decode=PREFILL + drafts)
    assert found(tmp_path) == [("decode.yaml", "disagg-drafts-of-decode", 3)]


def test_a_worker_without_a_transceiver_beside_one_that_has_it_is_said(tmp_path: Path) -> None:
    without = PREFILL.removesuffix(TRANSCEIVER)
    write(tmp_path, prefill=PREFILL, decode=without)
    assert found(tmp_path) == [("decode.yaml", "disagg-needs-transceiver", 1)]
    write(tmp_path, prefill=without)
    assert found(tmp_path) == []


@by_table
def test_a_name_tells_one_side_or_none(name: str, side: str | None) -> None:
    assert side_of(name) == side
