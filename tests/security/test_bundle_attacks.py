"""Bundles that somebody tampered with: damaged for `verify`, and refused by all that read them.

An attacker without a signer's key can make all lists anew, so that many cases do; what only a
signature can tell is no case here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import bundle, pipeline
from builder.bundle import MANIFEST, MAX_FILES, MAX_TOTAL_BYTES, SIGNATURE, SUMS, File
from builder.errors import BadInput, DamagedBundle
from launch import target
from tests.security.attacks import listen, survive

Attack = Callable[[Path], object]
WIDE = {ord(digit): 0xFF10 + int(digit) for digit in "0123456789"}
DEEP = 100_000


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "bundle"
    made = pipeline.render("llama-tiny", folder)
    bundle.attach(made, {"triton/run.json": bundle.to_json({"bundle": {"digest": made.digest}})})
    return folder


def listed(folder: Path) -> None:
    """Makes `SHA256SUMS` anew, as `sha256sum` would."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SUMS]
    digests = {str(path.relative_to(folder)): File(path.read_bytes()).sha256 for path in files}
    (folder / SUMS).write_bytes(bundle.sums(digests))


def manifest(change: Callable[[dict[str, Any]], object]) -> Attack:
    """A changed manifest, and the list made anew."""

    def attack(folder: Path) -> None:
        document = json.loads((folder / MANIFEST).read_bytes())
        change(document)
        (folder / MANIFEST).write_bytes(bundle.to_json(document))
        listed(folder)

    return attack


def row(change: Callable[[dict[str, Any]], object]) -> Attack:
    """A changed row of the manifest's files."""
    return manifest(lambda document: change(document["files"]["launch.json"]))


def named(name: str) -> Attack:
    """A file in the manifest that is elsewhere, with the right digest."""

    def change(document: dict[str, Any]) -> None:
        document["files"][name] = document["files"].pop("launch.json")

    return manifest(change)


def raw(data: bytes) -> Attack:
    """Bytes in the place of the manifest, and the list made anew."""

    def attack(folder: Path) -> None:
        (folder / MANIFEST).write_bytes(data)
        listed(folder)

    return attack


def text(path: str, change: Callable[[bytes], bytes]) -> Attack:
    return lambda folder: (folder / path).write_bytes(change((folder / path).read_bytes()))


def mode(path: str, bits: int) -> Attack:
    return lambda folder: (folder / path).chmod(bits)


def added(path: str, data: bytes = b"") -> Attack:
    def attack(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)

    return attack


def made(path: str) -> Attack:
    return lambda folder: (folder / path).mkdir(parents=True)


def instead(path: str, make: Callable[[Path], object]) -> Attack:
    """Something else in the place of a file."""

    def attack(folder: Path) -> None:
        (folder / path).unlink()
        make(folder / path)

    return attack


def of_size(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_TOTAL_BYTES + 1)


def swapped(one: str, other: str) -> Attack:
    def attack(folder: Path) -> None:
        first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
        (folder / one).write_bytes(second)
        (folder / other).write_bytes(first)

    return attack


def attacks(*several: Attack) -> Attack:
    def attack(folder: Path) -> None:
        for each in several:
            each(folder)

    return attack


def many(folder: Path) -> None:
    for index in range(MAX_FILES + 1):
        (folder / f"evidence/{index}").touch()


def deep_folder(folder: Path) -> None:
    path = folder
    for _ in range(200):
        path /= "d"
        path.mkdir()


# Each line names the one above twice.
ALIASES = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [*a%d,*a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 25)
)
MODEL = "triton/model_repository/tensorrt_llm"
ATTACKS: dict[str, Attack] = {
    # What lies in the folder.
    "a file added": added("triton/new.py"),
    "a hidden file added": added(".env", b"x"),
    "compiled Python added": added("triton/__pycache__/model.cpython-311.pyc"),
    "a file of evidence added": added("evidence/new.json", b"{}"),
    "a name with a newline": added("triton/x\nok: intact"),
    "a name with escape sequences": added("triton/\x1b[2J\x1b[32mok"),
    "a name that is not UTF-8": lambda folder: os.close(
        os.open(os.fsencode(folder) + b"/\xff\xfe", os.O_CREAT)
    ),
    "a name that turns the direction": added("triton/\u202etxt.exe"),
    "an empty folder": made("triton/empty"),
    "an empty version of a model": made(f"{MODEL}/2"),
    "an empty model": made("triton/model_repository/other/1"),
    "an empty folder of evidence": made("evidence/empty"),
    "folders in folders": deep_folder,
    "a file missing": lambda folder: (folder / "launch.json").unlink(),
    "the script missing": lambda folder: (folder / "triton/serve.sh").unlink(),
    "a folder missing": lambda folder: shutil.rmtree(folder / "triton"),
    "evidence missing": lambda folder: shutil.rmtree(folder / "evidence"),
    "a file cut": text("triton/serve.sh", lambda data: data[:-1]),
    "a file emptied": text("triton/serve.sh", lambda data: b""),
    "a byte flipped": text("launch.json", lambda data: data[:9] + b"~" + data[10:]),
    "two files swapped": swapped("launch.json", "checkpoint.json"),
    "a file renamed": lambda folder: (folder / "launch.json").rename(folder / "Launch.json"),
    "a link to the same bytes": instead(
        "launch.json", lambda path: path.symlink_to("checkpoint.json")
    ),
    "a link to nothing": instead("launch.json", lambda path: path.symlink_to("nothing")),
    "a link to itself": instead("launch.json", lambda path: path.symlink_to("launch.json")),
    "a link to a device": instead("launch.json", lambda path: path.symlink_to("/dev/zero")),
    "a link added": lambda folder: (folder / "triton/link").symlink_to("/"),
    "a pipe": instead("launch.json", os.mkfifo),
    "a pipe as manifest": instead(MANIFEST, os.mkfifo),
    "a pipe as list": instead(SUMS, os.mkfifo),
    "a pipe as signature": lambda folder: os.mkfifo(folder / SIGNATURE),
    "a socket": instead("launch.json", listen),
    "a folder as file": instead("launch.json", lambda path: path.mkdir()),
    "a folder as manifest": instead(MANIFEST, lambda path: path.mkdir()),
    "a folder as list": instead(SUMS, lambda path: path.mkdir()),
    "a file too large": instead("launch.json", of_size),
    "more files than anybody made": many,
    # Permissions.
    "a script without them": mode("triton/serve.sh", 0o644),
    "a file that can be run": mode("launch.json", 0o755),
    "a file that its group can run": mode("launch.json", 0o654),
    "a file that everybody writes": mode("launch.json", 0o666),
    "a script that everybody writes": mode("triton/serve.sh", 0o777),
    "a script with setuid": mode("triton/serve.sh", 0o4755),
    "a file that its owner cannot read": mode("trtllm_serve/config.yaml", 0o044),
    "a script with setgid": mode("triton/serve.sh", 0o2755),
    "a manifest that everybody writes": mode(MANIFEST, 0o666),
    "a list that everybody writes": mode(SUMS, 0o646),
    "evidence that everybody writes": mode("evidence/triton/run.json", 0o666),
    "a folder that everybody writes": mode("triton", 0o777),
    "a folder that everybody adds to": mode("triton", 0o1777),
    "the whole folder that everybody writes": mode(".", 0o777),
    # The manifest, with a list that fits.
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "format 2": manifest(lambda document: document.update(format=2)),
    "format 0": manifest(lambda document: document.update(format=0)),
    "format true": manifest(lambda document: document.update(format=True)),
    "format 1.0": manifest(lambda document: document.update(format=1.0)),
    "format as text": manifest(lambda document: document.update(format="1")),
    "format null": manifest(lambda document: document.update(format=None)),
    "no format": manifest(lambda document: document.pop("format")),
    **{
        f"no {part}": manifest(lambda document, part=part: document.pop(part))  # type: ignore[misc]
        for part in bundle.REQUIRED
    },
    **{
        f"{part} of another type": manifest(
            lambda document, part=part: document.update({part: "x"})  # type: ignore[misc]
        )
        for part in bundle.REQUIRED
    },
    "no file listed": manifest(lambda document: document["files"].clear()),
    "a file not listed": manifest(lambda document: document["files"].pop("launch.json")),
    "a row that is a list": manifest(
        lambda document: document["files"].update({"launch.json": []})
    ),
    "a row without digest": row(lambda found: found.pop("sha256")),
    "a row without size": row(lambda found: found.pop("bytes")),
    "a row without mode": row(lambda found: found.pop("mode")),
    "a digest in capitals": row(lambda found: found.update(sha256=found["sha256"].upper())),
    "a short digest": row(lambda found: found.update(sha256=found["sha256"][:63])),
    "another digest": row(lambda found: found.update(sha256="0" * 64)),
    "a wrong size": row(lambda found: found.update(bytes=found["bytes"] + 1)),
    "a size that is true": row(lambda found: found.update(bytes=True)),
    "a mode of everybody": row(lambda found: found.update(mode="777")),
    "a mode with setuid": row(lambda found: found.update(mode="4755")),
    "a name above": named("../launch.json"),
    "a name elsewhere": named("/etc/passwd"),
    "a name with a detour": named("triton/../launch.json"),
    "a name with a dot": named("./launch.json"),
    "an empty name": named(""),
    "a forged line as name": named("x\nok: 12 files match"),
    "a name with NUL": named("launch.json\x00"),
    "a name of 10,000 letters": named("x" * 10_000),
    "a name of half a letter": attacks(
        text(MANIFEST, lambda data: data.replace(b'"launch.json":', b'"a\\ud800": ', 1)), listed
    ),
    "an engine without a release": manifest(lambda document: document["engine"].pop("release")),
    "a release that is a number": manifest(lambda document: document["engine"].update(release=1.2)),
    "defaults that are none": manifest(lambda document: document.update(engine_defaults=None)),
    "a default that is a number": manifest(lambda document: document.update(engine_defaults=[5])),
    "a size beyond any disk": row(lambda found: found.update(bytes=10**400)),
    "a size below none": row(lambda found: found.update(bytes=-1)),
    "a size with a fraction": row(lambda found: found.update(bytes=float(found["bytes"]))),
    "digits of another script as mode": row(lambda found: found.update(mode="٦٤٤")),
    "a digest of wide letters": row(
        lambda found: found.update(sha256=found["sha256"].translate(WIDE))
    ),
    "a digest with a line's end": row(lambda found: found.update(sha256=found["sha256"] + "\n")),
    "a name that turns the direction in the list": named("launch\u202enosj."),
    "a name with escape sequences in the list": named("\x1b]0;ok\x07launch.json"),
    "a name of another spelling of its letters": named("launch.jso\u0301n"),
    "a name with a backslash": named("triton\\launch.json"),
    "a name with a blank at its end": named("launch.json "),
    "a mark of order before the manifest, unlike the list": text(
        MANIFEST, lambda data: b"\xef\xbb\xbf" + data
    ),
    "a manifest in UTF-16": text(MANIFEST, lambda data: data.decode().encode("utf-16")),
    "more after the manifest": text(MANIFEST, lambda data: data + b"{}"),
    "NUL in the list": text(SUMS, lambda data: data.replace(b"  ", b" \0", 1)),
    "no line's end in the list": text(SUMS, lambda data: data.rstrip(b"\n")),
    "a key twice": text(MANIFEST, lambda data: b'{"format": 1,' + data[1:]),
    "no JSON": raw(b"not json"),
    "an empty manifest": raw(b""),
    "a list as manifest": raw(b"[]"),
    "bytes as manifest": raw(bytes(range(256))),
    "a deep manifest": raw(b"[" * DEEP),
    "a manifest of objects in objects": raw(b'{"a":' * DEEP),
    "a manifest of 45 MB": raw(b"[" + b"[]," * 15_000_000 + b"[]]"),
    "a number of a million digits": raw(b'{"format": ' + b"1" * 1_000_000 + b"}"),
    # The list.
    "no list": lambda folder: (folder / SUMS).unlink(),
    "an empty list": text(SUMS, lambda data: b""),
    "a line less": text(SUMS, lambda data: data.split(b"\n", 1)[1]),
    "a line twice": text(SUMS, lambda data: data + data.split(b"\n", 1)[0] + b"\n"),
    "a line more": text(SUMS, lambda data: data + b"0" * 64 + b"  ../../etc/passwd\n"),
    "lines in another order": text(SUMS, lambda data: b"\n".join(data.split(b"\n")[::-1])),
    "lines that end as in DOS": text(SUMS, lambda data: data.replace(b"\n", b"\r\n")),
    "capitals": text(SUMS, bytes.upper),
    "a comment": text(SUMS, lambda data: b"# fine\n" + data),
    "no list, but bytes": text(SUMS, lambda data: bytes(range(256)) * 100),
    "a list of 50 MB": text(SUMS, lambda data: data * (50_000_000 // len(data))),
    # The signature.
    "no signature at all": added(SIGNATURE),
    "a signature of garbage": added(SIGNATURE, bytes(range(256))),
    "a signature of 50 MB": added(SIGNATURE, b"x" * 50_000_000),
    "a signature as folder": made(SIGNATURE),
    "a signature as link": lambda folder: (folder / SIGNATURE).symlink_to("/etc/passwd"),
    # What it is rendered from, next to damage, for which it is rendered again.
    "a request that grows without end": attacks(
        added("launch.json", b"{}"), added("deployment.yaml", ALIASES)
    ),
    "a request of the wrong kind": attacks(added("launch.json", b"{}"), added("deployment.yaml")),
    "facts of a model without end": attacks(
        text("checkpoint.json", lambda data: data.replace(b'_layers": 4', b'_layers": 1000000000')),
        listed,
        added("launch.json", b"{}"),
    ),
    "facts that are deep": attacks(
        added("checkpoint.json", b"[" * DEEP), listed, added("launch.json", b"{}")
    ),
    "evidence of another bundle": attacks(
        added("evidence/triton/run.json", b'{"bundle": {"digest": "0"}}'), listed
    ),
    "evidence of 200 MB, of a bundle that is damaged": attacks(
        lambda folder: (folder / "evidence/triton/run.json").write_bytes(b" " * 200_000_000),
        listed,
        added("launch.json"),
    ),
    "deep evidence": attacks(
        added("evidence/triton/run.json", b"[" * DEEP), listed, added("launch.json")
    ),
}
# Damage that only `verify` looks for: of the list, the signature and the evidence.
_ONLY_VERIFY = ("list", "line", "signature", "evidence", "capitals", "comment")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_found(name: str, sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "bundle")
    ATTACKS[name](folder)
    done = survive("verify", "bundle", cwd=tmp_path, codes=(2, 4))
    assert "intact" not in done.stdout
    if not any(word in name for word in _ONLY_VERIFY):
        with pytest.raises((DamagedBundle, BadInput)):
            bundle.read(folder)


def test_a_sound_bundle_passes_by_a_link_to_its_folder(sound: Path, tmp_path: Path) -> None:
    """Such as `current`, which is turned to the next one; what lies in it may be none."""
    shutil.copytree(sound, tmp_path / "v1")
    (tmp_path / "current").symlink_to("v1")
    for verb in ("verify", "explain"):
        survive(verb, "current", cwd=tmp_path, codes=(0,))
    (tmp_path / "v1").chmod(0o777)
    assert "every user" in survive("verify", "current", cwd=tmp_path, codes=(4,)).stderr


def test_a_sound_bundle_passes_with_the_permissions_of_any_usual_umask(
    sound: Path, tmp_path: Path
) -> None:
    """Copies are made with others: for oneself only, or for a group that works together."""
    for umask in (0o077, 0o027, 0o022, 0o002):
        folder = shutil.copytree(sound, tmp_path / f"{umask:o}")
        for path in (folder, *folder.rglob("*")):
            path.chmod((0o777 if path.is_dir() or path.stat().st_mode & 0o100 else 0o666) & ~umask)
        survive("verify", folder, cwd=tmp_path, codes=(0,))
        bundle.read(folder)


def entry(**given: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["targets"]["triton"].update(given)


LAUNCH_FILES: dict[str, bytes | Callable[[dict[str, Any]], object]] = {
    "no JSON": b"{",
    "deep": b"[" * DEEP,
    "a list": b"[]",
    "nothing": b"{}",
    "45 MB of lists": b"[" + b"[]," * 15_000_000 + b"[]]",
    "a key twice": b'{"name": "x", "name": "y"}',
    "no name": lambda document: document.pop("name"),
    "a name that is a list": lambda document: document.update(name=["x"]),
    "no engine": lambda document: document.pop("engine"),
    "an engine without release": lambda document: document["engine"].pop("release"),
    "no environment": lambda document: document.pop("environment"),
    "an environment of numbers": lambda document: document.update(environment={"X": 1}),
    "no targets": lambda document: document.pop("targets"),
    "targets that are a list": lambda document: document.update(targets=["triton"]),
    "a target that is a text": lambda document: document.update(targets={"triton": "x"}),
    "a target that is empty": lambda document: document.update(targets={"triton": {}}),
    "a target of no server": lambda document: document.update(
        targets={"../x": document["targets"]["triton"]}
    ),
    "a command that is a text": entry(argv="bash triton/serve.sh"),
    "a command of numbers": entry(argv=[1, 2]),
    "ports that are a list": entry(ports=[8000]),
    "a port that is a text": entry(ports={"http": "8000"}),
    "a port that is true": entry(ports={"http": True}),
    "a host that is a number": entry(host=1),
    "variables that are a list": entry(environment=["X=1"]),
    "a check without port": entry(ready={}),
    "a time that is a text": entry(start_timeout_s="10"),
    "nodes that are a text": entry(nodes="2"),
    "APIs that are a text": entry(restricted_apis="health"),
    "no command": entry(argv=[]),
    "a command with NUL": entry(argv=["bash\0"]),
    "a port beyond all": entry(ports={"http": 65536}),
    "a port below none": entry(ports={"http": -1}),
    "no ports": entry(ports={}),
    "a check of a port that is not there": entry(ready={"port": "other"}),
    "a path of two lines": entry(ready={"port": "http", "path": "/x\r\nA: b"}),
    "a host of two lines": entry(host="127.0.0.1\r\nX: y"),
    "a host with escape sequences": entry(host="\x1b[2J"),
    "a host of 300 letters": entry(host="x" * 300),
    "a variable with NUL": entry(environment={"A": "b\0"}),
    "a variable with an equals sign": lambda document: document["environment"].update({"A=": "b"}),
    "a variable without a name": entry(environment={"": "b"}),
    "a time below none": entry(start_timeout_s=-1),
    "a time beyond all": entry(stop_timeout_s=10**400),
    "no nodes": entry(nodes=0),
    "a model elsewhere": entry(model_name="../x"),
    "a name elsewhere": lambda document: document.update(name="../../x"),
    "a checkpoint with NUL": lambda document: document.update(checkpoint="a\0b"),
}


def with_launch_file(folder: Path, name: str) -> None:
    """A changed `launch.json`, and all lists made anew."""
    given, path = LAUNCH_FILES[name], folder / "launch.json"
    if callable(given):
        document = json.loads(path.read_bytes())
        given(document)
        given = bundle.to_json(document)
    path.write_bytes(given)
    manifest(
        lambda found: found["files"]["launch.json"].update(
            sha256=File(given).sha256, bytes=len(given)
        )
    )(folder)


@pytest.mark.parametrize("name", LAUNCH_FILES)
def test_what_is_started_is_told_as_it_must_be(name: str, sound: Path, tmp_path: Path) -> None:
    """With digests that fit: only its content is wrong."""
    folder = shutil.copytree(sound, tmp_path / "bundle")
    with_launch_file(folder, name)
    found = bundle.read(folder)
    with pytest.raises((DamagedBundle, BadInput)) as caught:
        target.read_all(found, [])
    assert "launch.json" in str(caught.value)


@pytest.mark.parametrize("name", ["_m", "Llama 3", "..."])
def test_a_model_is_called_what_a_folder_can_be(name: str, sound: Path, tmp_path: Path) -> None:
    document = json.loads((sound / "launch.json").read_bytes())
    for one in document["targets"].values():
        one["model_name"] = name
    assert list(bundle.launch_misfits(document)) == []


def test_the_launcher_says_so(tmp_path: Path) -> None:
    folder = pipeline.render("llama-tiny", tmp_path / "bundle").folder
    with_launch_file(folder, "a target that is empty")
    done = survive("up", folder, cwd=tmp_path, codes=(4,), module="launch")
    assert "launch.json: targets.triton.argv is missing" in done.stderr
