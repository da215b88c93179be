"""CUDA graphs: work captured from a stream, and replayed in one call."""

from __future__ import annotations

from collections.abc import Callable

from relayc.backend.cuda.driver import WRONG_CONTEXT, bindings, call, driver_error
from relayc.backend.cuda.gpu import Gpu
from relayc.backend.runtime.device_api import WorkspacePool
from relayc.backend.runtime.errors import DeviceError

__all__ = ["CapturedGraph", "record"]

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: calls unrelated to the stream, such as freeing memory, proceed as usual


class CapturedGraph:
    """A captured graph; calling it queues its work on the thread's current stream.

    It contains the addresses of the capture, and owns only its workspaces.
    """

    def __init__(self, executable: int, scratch: WorkspacePool, gpu: Gpu, stream_of: Callable[[Gpu], int]) -> None:
        self._executable = executable
        self._scratch = scratch
        self._gpu = gpu
        self._stream_of = stream_of
        self._launch = bindings().cuGraphLaunch
        self._last = 0

    def __call__(self) -> None:
        self._last = self._stream_of(self._gpu)
        result = self._launch(self._executable, self._last)[0]
        if result in WRONG_CONTEXT:
            self._gpu.activate()
            result = self._launch(self._executable, self._last)[0]
        if result:
            raise driver_error(f"replay of a recorded graph on cuda:{self._gpu.index}", result)

    def __del__(self) -> None:
        if self._last:
            self._gpu.finish(self._last, self._stream_of(self._gpu))  # a replay may be pending
        self._gpu.leave("cuGraphExecDestroy", self._executable)


def record(stream: int, submit: Callable[[], object]) -> int | None:
    """Capture what `submit` queues on `stream` as an executable graph; None if something in it can't be captured."""
    driver = bindings()
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(_RELAXED))
    failed = True
    try:
        submit()
        failed = False
    except DeviceError:
        return None
    finally:
        result, graph = driver.cuStreamEndCapture(stream)
        if failed and not result:
            driver.cuGraphDestroy(graph)
    if result:
        return None
    result, executable = driver.cuGraphInstantiate(graph, 0)
    driver.cuGraphDestroy(graph)
    return None if result else int(executable)
