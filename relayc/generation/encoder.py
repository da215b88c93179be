"""The encoder of a model that has one, and what it passes to the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.dtype import to_numpy
from relayc.generation.decoder import Decoder
from relayc.generation.errors import GenerationError
from relayc.generation.ports import DecoderPorts, cache_key, find_input, find_output
from relayc.runtime import GraphModule

__all__ = ["Encoded", "Encoder"]


@dataclass(frozen=True)
class Encoded:
    """The outputs of an encoder by name, and the mask of its positions (batch, positions)."""

    outputs: dict[str, npt.NDArray[Any]]
    mask: npt.NDArray[np.int64]


class Encoder:
    """An encoder of token ids, or of features (batch, channels, frames)."""

    def __init__(self, executor: GraphModule) -> None:
        self._executor = executor
        self._ids, self._features = find_input(executor, "input_ids", {}), find_input(executor, "input_features", {})
        self._mask = find_input(executor, "attention_mask", {})
        hidden = find_output(executor, "encoder_hidden_states", {})
        self._hidden = hidden.name if hidden is not None else next(iter(executor.get_output_info()[0]))
        if self._ids is None and self._features is None:
            raise GenerationError(f"the encoder has the inputs {executor}; expected input_ids or input_features")

    def clone(self, num_threads: int | None) -> Encoder:
        """Another encoder with the same weights."""
        return Encoder(self._executor.clone(num_threads))

    def takes_together(self, inputs: Sequence[Any]) -> bool:
        """Can these inputs be a batch?"""
        port = self._features if self._ids is None else self._ids
        if port is None or isinstance(port.shape[0], int):
            return False
        return self._mask is not None or len({np.shape(value) for value in inputs}) == 1

    def encode(self, inputs: Sequence[Any], pad: int) -> Encoded:
        """Encode a batch; token ids are padded on the right."""
        feed: dict[str, npt.NDArray[Any]] = {}
        if self._ids is not None:
            if any(isinstance(value, np.ndarray) and value.dtype.kind == "f" for value in inputs):
                raise GenerationError("the prompt has features, and the encoder takes tokens")
            length = max(map(len, inputs))
            ids, mask = np.full((len(inputs), length), pad, np.int64), np.zeros((len(inputs), length), np.int64)
            for row, value in enumerate(inputs):
                ids[row, : len(value)], mask[row, : len(value)] = value, 1
            feed[self._ids.name] = ids.astype(to_numpy(self._ids.dtype))
        else:
            assert self._features is not None
            if not all(isinstance(value, np.ndarray) and value.dtype.kind == "f" for value in inputs):
                raise GenerationError(f"the encoder takes {self._features}; expected an array of floats as the prompt")
            features = np.stack(inputs)
            feed[self._features.name] = features.astype(to_numpy(self._features.dtype))
            mask = np.ones((len(inputs), features.shape[-1]), np.int64)
        if self._mask is not None:
            feed[self._mask.name] = mask.astype(to_numpy(self._mask.dtype))
        names = list(self._executor.get_output_info()[0])
        outputs = dict(zip(names, self._executor.infer(feed), strict=True))
        if self._ids is None:  # an encoder of features may have fewer positions than they have frames
            mask = np.ones(outputs[self._hidden].shape[:2], np.int64)
        return Encoded(outputs, mask)

    def pass_on(self, encoded: Encoded, decoder: Decoder, ports: DecoderPorts) -> None:
        """Set the decoder's inputs: hidden states, their mask, and caches of cross-attention that the encoder makes."""
        keys = {key: name for name in encoded.outputs if (key := cache_key(name)) is not None}
        by_input = {p.input.name: keys.get((*key[:2], True), keys.get(key)) for p in ports.caches
                    if p.is_cross and (key := cache_key(p.input.name)) is not None}  # fmt: skip
        caches = {name: encoded.outputs[output] for name, output in by_input.items() if output is not None}
        hidden = encoded.outputs[self._hidden]
        decoder.pass_encoded({"encoder_hidden_states": hidden, "encoder_attention_mask": encoded.mask}, caches)
