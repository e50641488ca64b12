"""Where a server's CPU time goes: samples by file become shares by part."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import cpu_profile, triton_stream

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


def test_a_process_at_work_is_sampled() -> None:
    if not cpu_profile.is_installed():
        pytest.skip("perf is not installed")
    work = "import time\nwhile time.process_time() < 0.5: pass"
    with (
        subprocess.Popen([sys.executable, "-c", work]) as process,
        cpu_profile.sampled([process.pid]) as shares,
    ):
        process.wait(30)
    assert shares["Python"] + shares["kernel: sleep, wake, network"] > 0.5
    assert sum(shares.values()) == pytest.approx(1, abs=0.02)


def test_a_profile_without_its_program_is_refused_before_the_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert triton_stream.main(["--profile"]) == 2
    assert "--profile: there is no perf here" in capsys.readouterr().err
