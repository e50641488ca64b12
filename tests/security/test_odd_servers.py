"""Whatever answers at an address, a client of ours ends soon, in little memory, and says so."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.security.attacks import survive

MOST_CPU_S = 8.0  # streams that have no end are read up to a client's limits
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
NO_PAGES: Mapping[bytes, bytes] = {}
MODEL = b'{"data": [{"id": "m"}]}'


def whole(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


# What is said to a question for the models, and to all others; the last part without end.
ANSWERS: dict[str, tuple[bytes, bytes, bytes]] = {
    "deep JSON": (whole(b"[" * 200_000), whole(b"[" * 200_000), b""),
    "other types": (whole(b'{"data": 5}'), whole(b'{"choices": [5], "usage": "x"}'), b""),
    "other types inside": (
        whole(MODEL),
        whole(
            b'{"choices": [{"message": {"content": {}}, "finish_reason": 7, "logprobs": [1]}],'
            b' "usage": {"completion_tokens": "x"}}'
        ),
        b"",
    ),
    "half a letter": (whole(b'{"data": [{"id": "\\ud800"}]}'), whole(b"{}"), b""),
    "escape sequences": (whole(b'{"data": [{"id": "\\u001b[2J\\nok: fine"}]}'), whole(b"{}"), b""),
    "a body without end": (HEAD + b"\r\n", HEAD + b"\r\n", b"x" * 65536),
    "a head without end": (HEAD, HEAD, b"X: " + b"y" * 60_000 + b"\r\n"),
    "events without end": (
        whole(MODEL),
        HEAD + b"\r\n",
        b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n' * 1000,
    ),
    "a status without end": (b"HTTP/1.1 " + b"9" * 70_000 + b"\r\n\r\n",) * 2 + (b"",),
    "no HTTP": (b"220 ready \x1b[2J\r\n", b"220 ready\r\n", b""),
}


CHUNK = b'data: {"choices": [{"text": "x", "finish_reason": %s}]}\n\n'
COMPLETION = whole(CHUNK % b"null" * 7 + CHUNK % b'"length"' + b"data: [DONE]\n\n")
# Of a server that serves: what it says of itself, by path.
PAGES: dict[str, dict[bytes, bytes]] = {
    "a page for metrics": {
        b" /prometheus/metrics": whole(b"Welcome to nginx\n"),
        b" /metrics": whole(b"[" * 200_000),
        b" /perf_metrics": whole(
            b'[{"perf_metrics": [1]}, {"perf_metrics": {"timing_metrics": "x"}}]'
        ),
    },
    "numbers of any length": {
        b" /prometheus/metrics": whole(b"a_total 1e999\nb_total NaN\n"),
        b" /metrics": whole(b'[{"a": 1%s, "b": NaN}]' % (b"0" * 400)),
        b" /perf_metrics": whole(
            b'[{"perf_metrics": {"timing_metrics": {"arrival_time": 1%s}}}]' % (b"0" * 400)
        ),
    },
    "a count beyond all": {
        b" /v1/completions": whole(
            CHUNK % b'"length"'
            + b'data: {"choices": [], "usage": {"completion_tokens": 1%s}}\n\n' % (b"0" * 400)
            + b"data: [DONE]\n\n"
        )
    },
    "deep objects": {b" /metrics": whole(b'[{"a":' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"]")},
}


@contextmanager
def served(
    models: bytes, others: bytes, more: bytes, pages: Mapping[bytes, bytes] = NO_PAGES
) -> Iterator[str]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                question = self.request.recv(65536)
                is_triton = b" /v2" in question
                found = (page for path, page in pages.items() if path in question)
                answer = models if b"/models" in question else next(found, others)
                missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
                self.request.sendall(missing if is_triton else answer)
                while more and not is_triton and b"Content-Length" not in answer:
                    self.request.sendall(more)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


LOAD = [
    "--requests=1",
    "--concurrency=1",
    "--warmup=1",
    "--request-timeout=3",
    "--isl=8",
    "--osl=8",
]


@pytest.mark.parametrize("name", PAGES)
def test_what_a_server_says_of_itself_ends_no_measurement(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with served(whole(MODEL), COMPLETION, b"", PAGES[name]) as url:
        survive(
            *("bench", url, "--api=openai_completions", *LOAD, f"--run-dir={run}"),
            cwd=tmp_path,
            codes=(0,),
            module="launch",
        )
    (point,) = json.loads((run / "bench.json").read_text())["points"]
    assert point["requests"]["ok"] == 1


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("verb", ["smoke", "bench"])
def test_a_server_of_any_kind_is_told_from_a_sound_one(
    verb: str, name: str, tmp_path: Path
) -> None:
    more = [*LOAD, f"--run-dir={tmp_path / 'run'}"] if verb == "bench" else []
    with served(*ANSWERS[name]) as url:
        done = survive(
            *(verb, url, *more),
            cwd=tmp_path,
            codes=(5, 6),
            lines=False,
            most_s=MOST_CPU_S,
            module="launch",
        )
    assert len(done.stdout + done.stderr) < 100_000


@pytest.mark.parametrize("verb", ["smoke", "bench"])
def test_a_key_that_a_server_repeats_is_neither_said_nor_kept(verb: str, tmp_path: Path) -> None:
    key = b"hf_" + b"aB3dE5gH7jK9" * 3
    refusal = whole(b'{"error": {"message": "wrong key %s"}}' % key).replace(b"200 OK", b"400 No")
    more = [*LOAD, "--warmup=0", f"--run-dir={tmp_path / 'run'}"] if verb == "bench" else []
    with served(whole(MODEL), refusal, b"") as url:
        done = survive(verb, url, *more, cwd=tmp_path, codes=(5, 6), lines=False, module="launch")
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert key[:12] not in kept + done.stdout.encode() + done.stderr.encode()
