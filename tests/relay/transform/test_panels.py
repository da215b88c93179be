"""Weights in panels: compiled kernels and numpy give the same values."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend.driver import ModuleBuilder
from relayc.backend.runtime.threads import set_num_threads
from relayc.relay.stored import StoredConstant
from relayc.relay.transform import panels
from relayc.relay.transform.panels import PanelPacker
from relayc.topi.nn.winograd import winograd_matrices

NEVER = 1 << 60


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def expected_panels(weight: np.ndarray, width: int) -> np.ndarray:
    missing = -len(weight) % width
    padded = np.pad(weight, [(0, missing), *[(0, 0)] * (weight.ndim - 1)])
    return np.moveaxis(padded.reshape(-1, width, *weight.shape[1:]), 1, -1)


@pytest.mark.parametrize("worth", [0, NEVER], ids=["kernels", "numpy"])
@pytest.mark.parametrize("width", [6, 8, 16, 24, 32])
@pytest.mark.parametrize("shape", [(96, 48), (100, 64), (5, 16), (96, 1, 1, 32), (96, 3, 3, 5), (33, 7), (4099, 272)])
def test_rows_become_panels(shape: tuple[int, ...], width: int, worth: int) -> None:
    weight, packer = weights(*shape), PanelPacker(worth)
    packed = packer.panels(weight, width)
    packer.run()
    np.testing.assert_array_equal(packed, expected_panels(weight, width))


@pytest.mark.parametrize("worth", [0, NEVER], ids=["kernels", "numpy"])
def test_columns_become_panels(worth: int) -> None:
    weight, packer = weights(64, 100).T, PanelPacker(worth)
    packed = packer.panels(weight, 16)
    packer.run()
    np.testing.assert_array_equal(packed, expected_panels(weight, 16))


def test_misaligned_weights() -> None:
    memory = np.zeros(64 * 64 * 4 + 1, np.uint8)
    weight = memory[1:].view("float32").reshape(64, 64)
    weight[...] = weights(64, 64)
    packer = PanelPacker(0)
    packed = packer.panels(weight, 16)
    packer.run()
    np.testing.assert_array_equal(packed, expected_panels(weight, 16))


@pytest.mark.parametrize("worth", [0, NEVER], ids=["kernels", "numpy"])
@pytest.mark.parametrize(("tile", "taps"), [(2, 3), (4, 3), (2, 5)])
@pytest.mark.parametrize(("outputs", "inputs", "width"), [(48, 16, 24), (64, 40, 16), (32, 5, 32), (512, 64, 16)])
def test_filters_are_transformed(tile: int, taps: int, outputs: int, inputs: int, width: int, worth: int) -> None:
    filters, g = weights(outputs, inputs, taps, taps), winograd_matrices(tile, taps).g
    packer = PanelPacker(worth)
    packed = packer.winograd_panels(filters.transpose(0, 2, 3, 1), tile, width)
    packer.run()
    whole = np.einsum("ar,oirs,bs->oabi", g, filters.astype(np.float64), g)
    np.testing.assert_allclose(packed, expected_panels(whole, width), rtol=1e-6, atol=1e-6)


def test_filters_stored_in_another_order() -> None:
    filters, packer = weights(32, 3, 3, 16), PanelPacker(0)
    packed = packer.winograd_panels(filters, 4, 16)
    packer.run()
    g = winograd_matrices(4, 3).g
    whole = np.einsum("ar,orsi,bs->oabi", g, filters.astype(np.float64), g)
    np.testing.assert_allclose(packed, expected_panels(whole, 16), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("worth", [0, NEVER], ids=["kernels", "numpy"])
@pytest.mark.parametrize("planes", [1, 3])
def test_filters_of_planes(planes: int, worth: int) -> None:
    filters, g, packer = weights(32, 16, planes, 3, 3), winograd_matrices(4, 3).g, PanelPacker(worth)
    packed = packer.winograd_panels(filters.transpose(0, 2, 3, 4, 1), 4, 16)
    packer.run()
    whole = np.einsum("ar,oidrs,bs->oabdi", g, filters.astype(np.float64), g)
    np.testing.assert_allclose(packed, expected_panels(whole, 16), rtol=1e-6, atol=1e-6)


def test_other_types_are_left_to_numpy() -> None:
    weight, packer = weights(64, 64).astype("float16"), PanelPacker(0)
    packed = packer.panels(weight, 16)
    packer.run()
    np.testing.assert_array_equal(packed, expected_panels(weight, 16))


def test_one_kernel_serves_all_weights_of_a_width_and_little_work_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: dict[object, object] = {}
    monkeypatch.setattr(panels, "_compiled", compiled)
    packer, small = PanelPacker(4 * 64 * 64 * 2), PanelPacker(4 * 64 * 64 * 2 + 1)
    for p in (packer, small):
        p.panels(weights(64, 64), 8)
        p.panels(weights(64, 64), 8)
        p.run()
    assert len(compiled) == 1


def test_kernels_of_several_forms_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM compiles one while the next one is lowered."""
    builders: list[ModuleBuilder] = []
    monkeypatch.setattr(panels, "_compiled", {})
    monkeypatch.setattr(panels, "ModuleBuilder", lambda target: builders.append(ModuleBuilder(target)) or builders[-1])
    weight, packer = weights(64, 64), PanelPacker(0)
    packed = {width: packer.panels(weight, width) for width in (8, 16, 32)}
    packer.run()
    assert len(builders) == 1
    for width, panel in packed.items():
        np.testing.assert_array_equal(panel, expected_panels(weight, width))


def test_threads_do_not_change_the_result() -> None:
    weight, results = weights(4099, 272), []
    for count in (1, None):
        set_num_threads(count)
        packer = PanelPacker(0)
        results.append(packer.panels(weight, 24))
        packer.run()
    set_num_threads(None)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("worth", [0, NEVER], ids=["kernels", "numpy"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0), (1, 2, 3, 0), (2, 3, 0, 1)])
@pytest.mark.parametrize("outputs", [64, 70])
def test_stored_weights_are_fetched_and_packed_in_parts(
    outputs: int, order: tuple[int, ...], worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored rows may go along any dimension; `order` gives the dimensions (O, H, W, I) as they are stored."""
    monkeypatch.setattr(panels, "_PIECE", 4096)
    weight = weights(outputs, 3, 3, 32)
    stored, sizes = np.ascontiguousarray(weight.transpose(order)), list[int]()

    def fill(into: np.ndarray, start: int) -> None:
        sizes.append(into.nbytes)
        into[...] = stored.reshape(-1)[start : start + into.size].reshape(into.shape)

    constant = StoredConstant(stored.shape, stored.dtype, fill, np.argsort(order).tolist())
    packer = PanelPacker(worth)
    outputs_first = packer.values(constant)
    packed = packer.panels(outputs_first, 16, constant)
    grouped = packer.groups(outputs_first, 2, 40, constant)
    filters = packer.winograd_panels(outputs_first, 2, 32, constant) if outputs == 64 else None
    assert not sizes
    packer.run()
    np.testing.assert_array_equal(packed, expected_panels(weight, 16))
    np.testing.assert_array_equal(grouped[..., : outputs // 2], expected_panels(weight, outputs // 2))
    assert not grouped[..., outputs // 2 :].any()
    if filters is not None:
        g = winograd_matrices(2, 3).g
        whole = np.einsum("ar,orsi,bs->oabi", g, weight.astype(np.float64), g)
        np.testing.assert_allclose(filters, expected_panels(whole, 32), rtol=1e-6, atol=1e-6)
    assert len(sizes) > 2 and not constant.is_loaded
