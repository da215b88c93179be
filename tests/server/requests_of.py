"""Requests and responses of the protocol, as tests write and read them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np


def json_body(x: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    """A request whose input is JSON values."""
    values = np.asarray(x, np.float32)
    item = {"name": name, "shape": list(values.shape), "datatype": "FP32", "data": values.reshape(-1).tolist()}
    return {"inputs": [item], **more}


def binary_body(x: np.ndarray, name: str = "x", **more: Any) -> dict[str, Any]:
    """The arguments of a request whose input and outputs are bytes."""
    item = {
        "name": name, "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}
    }  # fmt: skip
    header = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}, **more}).encode()
    return {"content": header + x.tobytes(), "headers": {"Inference-Header-Content-Length": str(len(header))}}


def output_of(response: httpx.Response) -> np.ndarray:
    """The only output of a response, float32."""
    assert response.status_code == 200, response.text
    length = response.headers.get("Inference-Header-Content-Length")
    fields = json.loads(response.content[: None if length is None else int(length)])
    (output,) = fields["outputs"]
    if "data" in output:
        values = np.array(output["data"], np.float32)
    else:
        values = np.frombuffer(response.content[int(length) :], np.float32)
        assert values.nbytes == output["parameters"]["binary_data_size"]
    return values.reshape(output["shape"])
