"""Set-up on machines unlike this one: what it takes, leaves alone, waits for and asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from launch import pip_settings

ROOT = Path(__file__).resolve().parents[1]
TORCH = next(
    line.split('"')[1]
    for line in (ROOT / "pyproject.toml").read_text().splitlines()
    if line.strip().startswith('"torch==')
)

CPU_BUILD = f"-m uv pip install --index-strategy unsafe-best-match --torch-backend cpu {TORCH}"

Setup = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The only programs of the machine beside a shell's own; a test adds to them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "chmod", "comm", "cut", "dirname", "env", "find", "id", "mkdir"):
        link(folder, name)
    for name in ("rm", "sed", "sha256sum", "sleep", "sort", "tail", "tee", "uname"):
        link(folder, name)
    return folder


def link(folder: Path, name: str) -> None:
    found = shutil.which(name)
    assert found, name
    (folder / name).symlink_to(found)


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)  # a link leads to the machine's own
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is there, so that sourcing the set-up only defines it."""
    root = tmp_path / "checkout"
    (root / "launch").mkdir(parents=True)
    for name in ("setup.sh", "pip_settings.py"):
        shutil.copy(ROOT / "launch" / name, root / "launch")
    shutil.copy(ROOT / "pyproject.toml", root)
    python = root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    program(python.parent, "python", f'exec {sys.executable} "$@"')
    digest = subprocess.check_output(["sha256sum"], input=(root / "pyproject.toml").read_bytes())
    (root / ".venv/installed-rehearse").write_text(f"{root} {digest.decode().strip()}")
    return root


@pytest.fixture
def setup(checkout: Path, programs: Path) -> Setup:
    """Runs a line of bash after the set-up was sourced."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        script = f"source {checkout}/launch/setup.sh rehearse; daemons=; {line}"
        kept = {name: value for name, value in os.environ.items() if name.startswith("TEST_")}
        return subprocess.run(
            ["bash", "-c", script],
            env={**kept, "PATH": str(programs), "APT_LOCKED_S": "20"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("name", ["python3.12", "python3", "python"])
def test_a_python_of_the_right_version_is_taken_whatever_its_name(
    setup: Setup, programs: Path, name: str
) -> None:
    program(programs, "python3.11", "exit 1")
    program(programs, name, f'exec {sys.executable} "$@"')
    assert setup("find_python").stdout.strip() == str(programs / name)


def test_a_python_of_another_version_is_not_taken(setup: Setup, programs: Path) -> None:
    older = "import sys; sys.version_info = (3, 10, 4); exec(sys.argv[1])"
    program(programs, "python3", f"shift; exec {sys.executable} -c '{older}' \"$@\"")
    assert setup("find_python").returncode == 1


def test_another_program_that_installs_packages_is_waited_for(
    setup: Setup, programs: Path, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    locked = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"
    program(programs, "sudo", 'shift; exec "$@"')
    third = f'[[ $(sed -n "$=" {tried}) -ge 3 ]]'
    program(
        programs, "apt-get", f'echo "$@" >>{tried}; {third} || {{ echo "{locked}"; exit 100; }}'
    )
    found = setup("update_packages")
    assert found.returncode == 0
    assert len(tried.read_text().splitlines()) == 3
    assert found.stderr.count("another program installs packages; waiting up to 20 s") == 1


def test_another_failure_of_the_package_manager_is_shown_at_once(
    setup: Setup, programs: Path
) -> None:
    program(programs, "sudo", 'shift; exec "$@"')
    program(programs, "apt-get", "echo 'E: Unable to locate package'; exit 100")
    found = setup("update_packages")
    assert found.returncode == 1
    assert "Unable to locate package" in found.stderr
    assert "waiting" not in found.stderr


def test_without_root_nothing_is_tried_and_the_packages_are_asked_for_once(
    setup: Setup, programs: Path, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    program(programs, "id", "echo 1000")
    program(programs, "sudo", "exit 1")
    program(programs, "apt-get", f'echo "$@" >>{tried}; exit 100')
    found = setup('install_mpi; install_browser; printf "%s\\n" "${ask_for[@]}"')
    assert found.stdout.split() == ["openmpi-bin", "openssh-client", "openssh-server", "chromium"]
    assert not tried.exists()


def test_a_part_of_slurm_that_a_site_has_is_left_as_it_is(setup: Setup, programs: Path) -> None:
    program(programs, "sudo", "exit 1")
    program(programs, "sbatch", "exit 0")
    found = setup('install_slurm; echo "$? ${ask_for[*]}"')
    assert found.stdout.strip() == "1"
    assert "Slurm of this machine is left as it is" in found.stderr


def test_only_the_programs_that_are_missing_are_installed(setup: Setup, programs: Path) -> None:
    program(programs, "id", "echo 1000")
    program(programs, "sudo", "exit 1")
    for name in ("sshd", "ssh"):
        program(programs, name, "exit 0")
    assert setup('install_mpi; echo "${ask_for[@]}"').stdout.strip() == "openmpi-bin"


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    info = f"{name}-{version}.dist-info"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *lines, ""]))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("needs", "gpu", "reached", "expected"),
    [
        (["nvidia_cublas"], False, True, CPU_BUILD),
        (["nvidia_cublas"], False, False, CPU_BUILD),
        (["nvidia_cublas"], True, True, ""),
        ([], False, True, ""),
    ],
    ids=["pip has CUDA builds only", "no CPU build in reach", "a GPU", "pip has CPU builds"],
)
def test_cuda_libraries_are_not_fetched_without_a_gpu(
    setup: Setup,
    checkout: Path,
    programs: Path,
    needs: list[str],
    gpu: bool,
    reached: bool,
    expected: str,
) -> None:
    wheels = checkout / "wheels"
    wheels.mkdir()
    wheel(wheels, "torch", TORCH.partition("==")[2], *needs)
    wheel(wheels, "nvidia_cublas", "13.0")
    program(programs, "nvidia-smi", "exit 0" if gpu else "exit 9")
    pip = f"pip --isolated install --no-index --find-links {wheels} --ignore-installed"
    program(
        checkout / ".venv/bin",
        "python",
        f'case "$*" in *" uv pip "*) echo "$*" >>{checkout}/uv; exit {int(not reached)} ;;\n'
        f'*"install uv"*) ;;\n'
        f'"-m pip"*) shift 3; exec {sys.executable} -m {pip} "$@" ;;\n'
        f'*) exec {sys.executable} "$@" ;; esac',
    )
    found = setup("install_torch")
    assert found.returncode == 0, found.stderr
    called = (checkout / "uv").read_text() if (checkout / "uv").exists() else ""
    python = checkout / ".venv/bin/python"
    assert called.replace(f"--python {python} ", "").strip() == expected
    assert ("pip would fetch" in found.stderr) == bool(expected)
    assert ("pip fetches torch" in found.stderr) == (not reached)


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ([], []),
        (
            ["global.index-url='https://a/simple'", ":env:.index-url='https://b/simple'"],
            ["--default-index=https://b/simple"],
        ),
        (
            ["install.find-links='/w1 /w2'", "global.find-links='/old'", "global.no-index='true'"],
            ["--find-links=/w1", "--find-links=/w2", "--no-index"],
        ),
        (["freeze.index-url='https://c'", "global.no-index='false'", "global.timeout='9'"], []),
        (["install.trusted-host='a b'"], ["--allow-insecure-host=a", "--allow-insecure-host=b"]),
    ],
)
def test_uv_fetches_from_where_pip_does(settings: list[str], arguments: list[str]) -> None:
    assert list(pip_settings.arguments(pip_settings.read(settings))) == arguments


def test_uv_reaches_it_as_pip_does() -> None:
    settings = ["global.cert='/etc/ca.pem'", ":env:.cert='/own.pem'", "global.proxy='http://p:1'"]
    found = pip_settings.environment(pip_settings.read([*settings, ":env:.default-timeout='9'"]))
    assert list(found) == ["SSL_CERT_FILE=/own.pem", "ALL_PROXY=http://p:1", "UV_HTTP_TIMEOUT=9"]


def test_the_extra_for_gpus_has_no_nvml_that_ends_its_engine() -> None:
    """Of NVIDIA/TensorRT-LLM#18816: workers of 1.2.1 end with nvidia-ml-py 13.610."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = {row.name: row.specifier for row in map(Requirement, extras["gpu"])}
    assert "1.2.1" in wanted["tensorrt-llm"]
    allowed = ("13.595.45" in wanted["nvidia-ml-py"], "13.610.43" in wanted["nvidia-ml-py"])
    assert allowed == (True, False)
