"""Clients of the protocol that others wrote, against a server in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="pip install 'relayc[serve]'")

from tests.server.server_process import running

X = np.arange(16, dtype="float32").reshape(2, 8) / 16


@pytest.fixture(scope="module")
def url(models: Path) -> Any:
    with running(models) as (found, _):
        yield found


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient(url, expected, is_binary, compression):
    triton = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("dense", "1")
        assert client.get_model_metadata("dense")["versions"] == ["1", "2"]
        assert {"name": "fixed", "version": "1", "state": "READY", "reason": ""} in client.get_model_repository_index()
        x = triton.InferInput("x", X.shape, "FP32")
        x.set_data_from_numpy(X, binary_data=is_binary)
        outputs = [triton.InferRequestedOutput("y", binary_data=is_binary)]
        how = {"request_compression_algorithm": compression, "response_compression_algorithm": compression}
        result = client.infer("dense", [x], outputs=outputs, request_id="7", **how)
        np.testing.assert_array_equal(result.as_numpy("y"), expected(X))
        assert result.get_response()["id"] == "7"
        handles = [client.async_infer("dense", [x], outputs=outputs) for _ in range(10)]
        for handle in handles:
            np.testing.assert_array_equal(handle.get_result().as_numpy("y"), expected(X))
        x.set_shape([1, 16])
        with pytest.raises(triton.InferenceServerException, match=r"expected \[-1, 8\]"):
            client.infer("dense", [x])


@pytest.mark.parametrize("is_binary", [False, True])
def test_kserve(url, expected, is_binary):
    kserve = pytest.importorskip("kserve", reason="pip install kserve")
    infer_type = pytest.importorskip("kserve.protocol.infer_type", reason="pip install kserve")

    async def send() -> Any:
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, "dense")
        x = kserve.InferInput("x", list(X.shape), "FP32")
        x.set_data_from_numpy(X, binary_data=is_binary)
        request = kserve.InferRequest("dense", [x], request_outputs=[
            infer_type.RequestedOutput("y", {"binary_data": is_binary})
        ])  # fmt: skip
        return await client.infer(url, request, model_name="dense")

    np.testing.assert_array_equal(asyncio.run(send()).outputs[0].as_numpy(), expected(X))
