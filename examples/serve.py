"""A server, and a client of it that needs only the standard library and numpy: tensors travel as bytes.

    python examples/serve.py

It compiles a small model, starts `relayc serve` with it on a free port, sends three requests over one connection, and
ends the server. Clients of KServe and Triton send the same.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from relayc import relay
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar


def write_model(path: Path) -> np.ndarray:
    """Compile softmax(x W^T) for any number of rows; returns W."""
    weight = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    x = relay.var("x", (SizeVar("n"), 8))
    body = relay.nn.softmax(relay.nn.dense(x, relay.const(weight)))
    relay.build(IRModule({"main": relay.Function((x,), body)}, {"output_names": ["y"]})).save(path)
    return weight


def infer(connection: http.client.HTTPConnection, model: str, x: np.ndarray) -> np.ndarray:
    """Send a request with one input of float32, and return the one output."""
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "parameters": {"binary_data_size": x.nbytes}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    connection.request("POST", f"/v2/models/{model}/infer", header + x.tobytes(), headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(json.loads(body)["error"])
    length = int(response.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(body[:length])["outputs"]
    return np.frombuffer(body[length:], np.float32).reshape(output["shape"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "classify.relayc"
        weight = write_model(path)
        command = [sys.executable, "-m", "relayc", "serve", str(path), "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                for line in server.stderr:
                    if line.startswith("listening on "):
                        break
                else:
                    raise SystemExit("the server did not start")
                connection = http.client.HTTPConnection(line.strip().removeprefix("listening on http://"))
                for rows in (1, 2, 3):
                    x = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
                    y = infer(connection, "classify", x)
                    logits = np.exp(x @ weight.T)
                    np.testing.assert_allclose(y, logits / logits.sum(1, keepdims=True), rtol=1e-4)
                    print(f"{rows} rows: classes {y.argmax(1).tolist()}")
                connection.close()
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
