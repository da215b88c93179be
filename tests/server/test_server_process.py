"""The server in a process of its own, with real connections."""

from __future__ import annotations

import itertools
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

httpx = pytest.importorskip("httpx", reason="pip install httpx")
pytest.importorskip("uvicorn", reason="pip install 'relayc[serve]'")

from relayc.server import serving  # noqa: E402
from tests.server.requests_of import binary_body, json_body, output_of  # noqa: E402
from tests.server.server_process import running  # noqa: E402

SLOW = "/v2/models/slow/infer"


@pytest.fixture(scope="module")
def url(models: Path) -> Any:
    with running(models, instances=2, queue=64, timeout=2, request_bytes=1 << 20, held_bytes=8 << 20) as (found, _):
        yield found


def metric(url: str, text: str) -> float:
    """The value of a metric, by its name and labels; 0 if it has none."""
    lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith(text + " ")]
    return float(lines[0].split()[-1]) if lines else 0.0


def eventually(condition: Any, seconds: float = 10.0) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def from_connections(url: str, count: int, connections: int, send: Any) -> list[Any]:
    """What `send(client, number)` gives for each number, from so many connections at once."""

    def work(first: int) -> list[tuple[int, Any]]:
        with httpx.Client(base_url=url, timeout=60) as client:
            return [(number, send(client, number)) for number in range(first, count, connections)]

    with ThreadPoolExecutor(connections) as pool:
        results = dict(itertools.chain.from_iterable(pool.map(work, range(connections))))
    return [results[number] for number in range(count)]


@pytest.mark.slow
def test_a_thousand_requests_from_32_connections_give_what_the_executor_gives(url, expected):
    inputs = [np.random.default_rng(i).standard_normal((1 + i % 3, 8)).astype("float32") for i in range(1000)]

    def send(client: Any, number: int) -> Any:
        body = binary_body(inputs[number]) if number % 2 else {"json": json_body(inputs[number])}
        return client.post("/v2/models/dense/infer", **body)

    for x, response in zip(inputs, from_connections(url, 1000, 32, send), strict=True):
        np.testing.assert_array_equal(output_of(response), expected(x))


def test_more_requests_than_may_wait_are_refused(models):
    with running(models, queue=2) as (url, _):
        responses = from_connections(
            url, 24, 24, lambda client, _: client.post(SLOW, json=json_body([[0.4]], "seconds"))
        )
        assert sorted({r.status_code for r in responses}) == [200, 429]
        assert sum(r.status_code == 200 for r in responses) >= 3
        refused = next(r for r in responses if r.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"] == "2 requests wait for model 'slow' already; try again later"


def test_a_request_that_takes_too_long_is_ended(url):
    asked = json_body([[30]], "seconds", parameters={"timeout": 100_000})
    responses = from_connections(url, 4, 4, lambda client, _: client.post(SLOW, json=asked))
    assert {r.status_code for r in responses} == {504}
    assert "was not done within 0.1 s" in responses[0].json()["error"]
    # both instances are free again
    assert httpx.post(url + SLOW, json=json_body([[0]], "seconds"), timeout=25).status_code == 200


def connection(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def request_text(body: bytes, *headers: str, path: str = SLOW) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: test", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_a_run_ends_when_its_client_is_gone(models):
    with running(models) as (url, _):
        body = b'{"inputs": [{"name": "seconds", "shape": [1, 1], "datatype": "FP32", "data": [50]}]}'
        with connection(url) as client:
            client.sendall(request_text(body, f"content-length: {len(body)}"))
            eventually(lambda: metric(url, "relayc_held_bytes") == len(body))
        assert httpx.post(url + SLOW, json=json_body([[0]], "seconds"), timeout=20).status_code == 200
        label = 'relayc_requests_total{model="slow",status="499",version="1"}'
        eventually(lambda: metric(url, label) == 1)
        assert metric(url, "relayc_held_bytes") == 0


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (["content-length: 1000000000000"], b"", 413),
        (["content-length: 100"], b"{", 408),  # the rest does not come
        (["content-length: 12x"], b"{}", 400),
        (["transfer-encoding: chunked"], b"zz\r\n", 400),
        (["transfer-encoding: chunked"], b"4\r\n{   \r\n0\r\n\r\n", 400),
        (["content-length: 2", "content-encoding: gzip"], b"{}", 400),
        (["content-length: 2", "content-encoding: br"], b"{}", 415),
    ],
)
def test_bodies_that_are_none(url, headers, body, status):
    with connection(url) as client:
        client.sendall(request_text(body, *headers))
        assert client.recv(4096).split()[1] == str(status).encode()
    assert httpx.get(f"{url}/v2/health/ready").status_code == 200


def test_headers_without_end_are_refused(url):
    with connection(url) as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\n")
        with pytest.raises(OSError):
            for number in range(1_000_000):
                client.sendall(b"x-header-%d: %b\r\n" % (number, bytes(1000).replace(b"\0", b"x")))


@pytest.mark.parametrize("head", [b"", b"GET", b"POST /v2/models/dense/infer HTTP/1.1\r\nhost: test\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(url, head):
    with connection(url) as client:
        client.sendall(head)
        assert client.recv(100) == b""
    with connection(url) as client:  # after a request, too
        client.sendall(b"GET /v2 HTTP/1.1\r\nhost: test\r\n\r\n")
        answer = b""
        while not answer.endswith(b"]}"):
            answer += client.recv(4096)
        client.sendall(head)
        if head:
            assert client.recv(100) == b""


def test_bytes_that_are_no_requests(url):
    """Each connection gets an answer or is closed, and the server goes on."""
    rng = random.Random(0)
    body = b'{"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0, 1, 2, 3, 4, 5, 6, 7]}]}'
    whole = request_text(body, f"content-length: {len(body)}", "connection: close", path="/v2/models/dense/infer")
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randint(0, 3)] = rng.choice([b"", b"\r\n", b"\0", b"\xff", b" ", b":", b"9"])
        with connection(url) as client:
            client.sendall(damaged)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    assert httpx.get(f"{url}/v2/health/ready").status_code == 200


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY the second packet of an answer waits for the acknowledgement of the first."""
    with serving._listening("127.0.0.1", 0, 1) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken(url):
    port = int(url.rpartition(":")[2])
    with pytest.raises(OSError, match=f"127.0.0.1, port {port}; say another one"):
        serving._listening("127.0.0.1", port, 1)


def test_a_body_without_end_is_refused(url):
    with connection(url) as client:
        client.sendall(request_text(b"", "transfer-encoding: chunked"))
        with pytest.raises(OSError):
            for _ in range(1000):
                client.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    assert metric(url, "relayc_held_bytes") == 0


def test_requests_beyond_the_memory_for_them_are_refused(models):
    with running(models, instances=1, queue=128, held_bytes=14 << 20, request_bytes=5 << 20) as (url, _):
        before = metric(url, "process_resident_memory_bytes")
        seconds = np.full((1 << 20, 1), 0.5 / (1 << 20), "float32")
        body = binary_body(seconds, "seconds")
        responses = from_connections(url, 24, 24, lambda client, _: client.post(SLOW, **body))
        assert {r.status_code for r in responses} == {200, 429}
        assert metric(url, "process_resident_memory_bytes") - before < 64 << 20
        assert metric(url, "relayc_held_bytes") == 0


def test_a_client_that_does_not_read_is_disconnected(models):
    with running(models, timeout=2, request_bytes=64 << 20) as (url, _):
        before = metric(url, "process_open_fds")
        body = binary_body(np.zeros((8 << 20, 1), "float32"), "seconds")
        headers = [f"{name}: {value}" for name, value in body["headers"].items()]
        with connection(url) as client:
            client.sendall(request_text(body["content"], f"content-length: {len(body['content'])}", *headers))
            eventually(lambda: metric(url, "relayc_held_bytes") > 0)
            eventually(lambda: metric(url, "relayc_held_bytes") == 0)
            eventually(lambda: metric(url, "process_open_fds") == before)


def test_requests_in_progress_are_finished_at_sigterm(models):
    with running(models, instances=2, queue=32) as (url, process):
        answered: list[int] = []
        idle = httpx.Client(base_url=url)
        assert idle.get("/v2/health/ready").status_code == 200

        body = json.dumps(json_body([[0.5]], "seconds")).encode()

        def send() -> None:
            answered.append(httpx.post(url + SLOW, content=body, timeout=60).status_code)

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        eventually(lambda: metric(url, "relayc_held_bytes") / len(body) + len(answered) >= 8)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert answered == [200] * 8
        assert process.wait(timeout=20) == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(url)
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_drain_has_an_end(models, signals):
    drain = 0.5 if signals == 1 else 1000
    with running(models, instances=2, drain=drain) as (url, process), connection(url) as client:
        body = json.dumps(json_body([[50]], "seconds")).encode()
        with connection(url) as slow_writer, connection(url) as slow_reader:
            client.sendall(request_text(body, f"content-length: {len(body)}"))
            slow_writer.sendall(request_text(b"{", f"content-length: {len(body)}"))
            large = binary_body(np.zeros((8 << 20, 1), "float32"), "seconds")
            headers = [f"{name}: {value}" for name, value in large["headers"].items()]
            slow_reader.sendall(request_text(large["content"], f"content-length: {len(large['content'])}", *headers))
            eventually(lambda: metric(url, "relayc_held_bytes") > 1.9 * len(large["content"]))
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.2)  # or both are taken for one
            for late in (client, slow_writer):
                answer = b"".join(iter(lambda late=late: late.recv(1000), b""))
                assert answer.startswith(b"HTTP/1.1 503 ") and b"shut down before the request was done" in answer
            assert process.wait(timeout=20) == 0
        assert "Traceback" not in process.stderr.read()


def test_requests_of_many_clients_are_joined(models, expected):
    with running(models, max_batch_size=8, max_delay=0.02) as (url, _):
        rows = np.random.default_rng(0).standard_normal((200, 1, 8)).astype("float32")
        responses = from_connections(
            url, 200, 16, lambda client, i: client.post("/v2/models/dense/infer", **binary_body(rows[i]))
        )
        for x, response in zip(rows, responses, strict=True):
            np.testing.assert_allclose(output_of(response), expected(x), rtol=1e-5)
        labels = '{model="dense",version="2"}'
        assert metric(url, "relayc_batch_rows_sum" + labels) == 200
        assert metric(url, "relayc_batch_rows_count" + labels) < 150


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relayc", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_the_command_refuses_what_it_can_not_serve(models, tmp_path):
    artifact = tmp_path / "net.relayc"
    artifact.write_bytes((models / "fixed/1/model.relayc").read_bytes())
    done = run_command(str(artifact), str(artifact))
    assert done.returncode == 1 and "there are two models 'net' of version 1; rename one: NAME=FILE" in done.stderr
    done = run_command(str(tmp_path))
    assert done.returncode == 1 and f"no model in {tmp_path}" in done.stderr
    done = run_command(str(artifact), "--queue", "0")
    assert done.returncode == 2 and "--queue" in done.stderr
    openssl = pytest.importorskip("cryptography.hazmat.primitives.serialization", reason="pip install 'relayc[sign]'")
    keys = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    public = keys.Ed25519PrivateKey.generate().public_key()
    key = tmp_path / "public.pem"
    key.write_bytes(public.public_bytes(openssl.Encoding.PEM, openssl.PublicFormat.SubjectPublicKeyInfo))
    done = run_command(str(artifact), "--key", str(key))
    assert done.returncode == 1 and "net.relayc.sig" in done.stderr


def test_the_command_serves(models):
    arguments = [f"first={models}/dense/1/model.relayc", str(models), "--port", "0", "--max-batch-size", "4"]
    process = subprocess.Popen([sys.executable, "-m", "relayc", "serve", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stderr.readline().strip() for _ in range(5)]
        assert lines[0] == f"first, version 1: {models}/dense/1/model.relayc"
        assert lines[3].endswith("(requests are not joined: 'x' has no first dimension of any size)")
        url = lines[4].removeprefix("listening on ")
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{url}/v2/models/dense").json()["versions"] == ["1", "2"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()
