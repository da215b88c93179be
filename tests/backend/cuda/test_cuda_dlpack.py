"""Arrays on a GPU exchanged by DLPack, in the order of the consumer's stream."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend.cuda.driver import call
from relayc.backend.runtime import NDArray, device, nd
from tests.cuda_emulation import emulation

RNG = np.random.default_rng(0)
N = 1 << 16


@pytest.fixture
def consumer(cuda_device):
    """A stream unknown to the runtime, as another library's is."""
    cuda_device.api.set_device(cuda_device)
    stream = int(call("cuStreamCreate", 1))
    yield stream
    call("cuStreamDestroy", stream)


def read_on(stream, array, where):
    """The values that a consumer sees which queues a copy of the array on `stream`."""
    copy = nd.empty(array.shape, array.dtype, where)
    where.api.copy_data_from_to(array.handle, 0, copy.handle, 0, array.nbytes, where, where, stream)
    call("cuStreamSynchronize", stream)
    return copy.numpy()


def test_a_capsule_holds_the_same_memory(cuda_device):
    values = RNG.random((3, 5)).astype("float32")
    x = nd.array(values, cuda_device)
    assert x.__dlpack_device__() == (2, 0)
    for y in (nd.from_dlpack(x), nd.from_dlpack(x.to_dlpack()), nd.from_dlpack(x.__dlpack__(max_version=(1, 1)))):
        assert (y.handle, y.shape, y.device) == (x.handle, x.shape, cuda_device)
        assert np.array_equal(y.numpy(), values)
    part = x._create_view((5,), "float32", 20)
    assert np.array_equal(nd.from_dlpack(part).numpy(), values[1])


def test_memory_lives_as_long_as_the_consumer(cuda_device):
    values = RNG.random(N).astype("float32")
    y = nd.from_dlpack(nd.array(values, cuda_device))
    others = [nd.zeros((N,), "float32", cuda_device) for _ in range(4)]
    assert np.array_equal(y.numpy(), values) and len(others) == 4


@pytest.mark.parametrize("stream", ["the consumer's", 1, 2])
def test_the_consumers_stream_is_ordered(cuda_device, consumer, stream):
    values = RNG.random(N).astype("float32")
    x = nd.array(values, cuda_device)
    chosen = consumer if isinstance(stream, str) else stream
    x.__dlpack__(stream=chosen)
    assert np.array_equal(read_on(chosen, x, cuda_device), values)


def test_without_a_stream_the_host_synchronises(cuda_device, consumer):
    values = RNG.random(N).astype("float32")
    x = nd.array(values, cuda_device)
    x.__dlpack__()
    assert np.array_equal(read_on(consumer, x, cuda_device), values)


@pytest.mark.skipif(emulation.real_driver(), reason="a race, which the emulation always loses")
def test_stream_minus_one_skips_synchronisation(cuda_device, consumer):
    x = nd.array(np.zeros(N, "float32"), cuda_device)
    x.__dlpack__(stream=-1)
    assert np.isnan(read_on(consumer, x, cuda_device)).all()


def test_copies_are_synchronised_too(cuda_device, consumer):
    values = RNG.random(N).astype("float32")
    x = nd.array(values, cuda_device)
    y = nd.from_dlpack(x.__dlpack__(copy=True, stream=consumer, max_version=(1, 1)))
    assert y.handle != x.handle and np.array_equal(read_on(consumer, y, cuda_device), values)
    here = nd.from_dlpack(x.__dlpack__(dl_device=(1, 0), max_version=(1, 1)))
    assert here.device == device("cpu", 0) and np.array_equal(here.numpy(), values)
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(dl_device=(1, 0), copy=False)


class Owner:
    """Records whether its memory may be overwritten."""

    def __init__(self, memory, released):
        self.memory, self.released = memory, released

    def __del__(self):
        self.released.append(True)


def test_foreign_memory_is_kept_until_work_on_it_is_done(cuda_device):
    """PyTorch reuses memory as soon as it is released, in the order of its own streams."""
    released, values = [], RNG.random(N).astype("float32")
    memory = nd.array(values, cuda_device)
    foreign = nd.from_dlpack(NDArray(memory.handle, (N,), "float32", cuda_device, Owner(memory, released)))
    copy = foreign.copyto(cuda_device)
    del foreign, memory
    if not emulation.real_driver():  # whose work completes only at a synchronisation
        assert not released
    cuda_device.sync()
    assert released and np.array_equal(copy.numpy(), values)


def test_managed_memory_is_imported_as_device_memory(cuda_device, kernels):
    """CuPy can allocate managed memory; DLPack has a device type of its own for it."""
    cuda_device.api.set_device(cuda_device)
    values = RNG.random(100).astype("float32")
    x, y = nd.array(values, cuda_device), nd.empty((100,), "float32", cuda_device)

    class Managed:
        def __dlpack_device__(self):
            return 13, 0

        def __dlpack__(self, *, stream=None, max_version=None):
            managed = NDArray(x.handle, x.shape, x.dtype, x.device, x)
            managed.tensor.device_type = 13
            return managed.__dlpack__(stream=stream, max_version=max_version)

    foreign = nd.from_dlpack(Managed())
    assert foreign.device == cuda_device and foreign.__dlpack_device__() == (2, 0)
    kernels["scale"](foreign, y, 2.0)
    assert np.allclose(y.numpy(), 2 * values)


def test_producers_receive_the_current_stream(cuda_device):
    seen = []

    class Producer:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, *, stream=None, max_version=None):
            seen.append(stream)
            return self.array.__dlpack__(stream=stream, max_version=max_version)

    x = nd.array(RNG.random(4).astype("float32"), cuda_device)
    mine = cuda_device.create_raw_stream()
    nd.from_dlpack(Producer(x))
    cuda_device.api.sync_stream_from_to(cuda_device, None, mine)
    cuda_device.set_raw_stream(mine)
    y = nd.from_dlpack(Producer(x))
    assert seen[0] not in (None, mine) and seen[1] == mine and np.array_equal(y.numpy(), x.numpy())
    cuda_device.set_raw_stream(None)
    cuda_device.free_raw_stream(mine)


@pytest.mark.cuda
def test_torch(cuda_device, kernels):
    torch = pytest.importorskip("torch")
    ours = nd.array(RNG.random(N).astype("float32"), cuda_device)
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == ours.handle
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        doubled = torch.from_dlpack(ours) * 2
        back = nd.from_dlpack(doubled)
    assert np.allclose(back.numpy(), 2 * ours.numpy())
    out = torch.empty_like(theirs)
    kernels["add"](theirs, doubled, out)
    cuda_device.sync()
    assert np.allclose(out.cpu().numpy(), 3 * ours.numpy())
    cuda_device.set_raw_stream(side)
    kernels["add"](theirs, doubled, out)
    side.synchronize()
    cuda_device.set_raw_stream(None)
    assert np.allclose(out.cpu().numpy(), 3 * ours.numpy())


@pytest.mark.cuda
def test_cupy(cuda_device):
    cupy = pytest.importorskip("cupy")
    ours = nd.array(RNG.random(N).astype("float32"), cuda_device)
    theirs = cupy.from_dlpack(ours)
    assert theirs.data.ptr == ours.handle
    assert np.allclose(nd.from_dlpack(theirs + 1).numpy(), ours.numpy() + 1)
