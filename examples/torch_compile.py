"""A small vision transformer in PyTorch: compiled by `torch.compile`, and ahead of time into a file.

    python examples/torch_compile.py
"""

# needs torch: pip install 'relayc[torch]'
from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import relayc
from relayc.runtime import device, graph_executor, load_model


class VisionTransformer(torch.nn.Module):
    """Patches of 8 x 8 pixels, three layers, and ten classes."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.positions = torch.nn.Parameter(torch.randn(1, 64, width) / 50)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, num_layers=3)
        self.classes = torch.nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.classes(self.layers(tokens).mean(1))


def milliseconds(call: Callable[[], object]) -> float:
    """The shortest of ten calls."""
    times: list[float] = []
    for _ in range(10):
        started = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - started))
    return min(times)


def main() -> None:
    torch.manual_seed(0)
    model, images = VisionTransformer().eval(), torch.randn(4, 3, 64, 64)
    fast = torch.compile(model, backend="relayc")
    with torch.inference_mode():
        expected = model(images)
        torch.testing.assert_close(fast(images), expected, atol=1e-4, rtol=1e-4)
        eager, ours = milliseconds(lambda: model(images)), milliseconds(lambda: fast(images))
    print(f"eager {eager:.2f} ms, relayc {ours:.2f} ms, equal within 1e-4")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transformer.relayc"
        relayc.compile_torch(model, (images,), dynamic_shapes={"images": {0: "batch"}}).save(path)
        run = graph_executor.GraphModule(load_model(path)["default"](device("cpu")))
        (result,) = run(images[:3])
        torch.testing.assert_close(torch.from_dlpack(result), expected[:3], atol=1e-4, rtol=1e-4)
        print(f"{path.name}: {path.stat().st_size >> 10} KiB, runs without torch, at any batch")


if __name__ == "__main__":
    main()
