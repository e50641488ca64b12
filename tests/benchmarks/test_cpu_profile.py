"""Where a server's CPU time goes: samples by file become shares by part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import cpu_profile, triton_stream
from builder.errors import ChecksFailed

REPORT = """\
 41.00% ;[kernel.kallsyms]
 24.00% ;libpython3.11.so.1.0
 10.50% ;libc.so.6
 10.00% ;tritonserver
  6.00% ;triton_python_backend_stub
  4.00% ;libtriton_python.so
  2.00% ;_multiarray_umath.cpython-311-x86_64-linux-gnu.so
  1.50% ;libtritonserver-717102f0.so
  1.00% ;python3.11

"""


def test_every_file_counts_for_one_part() -> None:
    shares = cpu_profile.shares(REPORT.splitlines())
    assert {part: round(100 * share, 1) for part, share in shares.items()} == {
        "kernel: sleep, wake, network": 41.0,
        "Python": 27.0,
        "C library": 10.5,
        "Triton's core, gRPC": 11.5,
        "Python backend, shared memory": 10.0,
    }


# Stands in for perf, which not every machine has: it records until it is stopped.
PERF = """\
#!/bin/sh
echo "$*" >>"$0.calls"
case $1 in
  record)
    trap 'exit 0' TERM
    while [ "$1" != -o ]; do shift; done
    : >"$2"
    while :; do sleep 0.05; done ;;
  report) cat "$0.report" ;;
esac
"""


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "perf"
    program.write_text(PERF)
    program.chmod(0o755)
    (tmp_path / "perf.report").write_text(REPORT)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return program


def test_processes_are_sampled_until_the_end(perf: Path) -> None:
    with cpu_profile.sampled([7, 9]) as shares:
        assert shares == {}, "known at the end"
    assert shares == cpu_profile.shares(REPORT.splitlines())
    record, report = perf.with_suffix(".calls").read_text().splitlines()
    assert record.startswith("record ") and record.endswith(" -p 7,9")
    assert report.startswith("report ")


def test_processes_that_cannot_be_sampled_are_told(perf: Path) -> None:
    perf.write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
    said = pytest.raises(ChecksFailed, match="perf has no samples: not permitted")
    with said, cpu_profile.sampled([7]):
        pass


def test_a_profile_without_its_program_is_refused_before_the_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert triton_stream.main(["--profile"]) == 2
    assert "--profile: there is no perf here" in capsys.readouterr().err
