"""Steps of a decoder: new tokens in, logits of the last position out, with what earlier positions left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.dtype import to_numpy
from relayc.generation.errors import GenerationError
from relayc.generation.ports import DecoderPorts, Port, cache_key
from relayc.generation.processors import Tokens
from relayc.runtime import GraphModule, NDArray, nd

__all__ = ["Decoder", "doubled"]

Array = npt.NDArray[Any]

_AXES_OF_POSITIONS = 3
"""Time, height and width in models of texts, images and videos (Qwen2-VL): for a text they are the same."""


class Decoder:
    """A decoder and the state of a batch: its caches, or all its tokens for a model without caches.

    Caches are those that the executor keeps, and those that are passed from output to input. `prefill` is the graph of
    the first step, where that is another one (decoder_model.onnx beside decoder_with_past_model.onnx).
    """

    def __init__(
        self,
        executor: GraphModule,
        ports: DecoderPorts,
        prefill: tuple[GraphModule, DecoderPorts] | None = None,
        takes_padding: bool = True,
    ) -> None:
        self._executor, self._ports, self._prefill = executor, ports, prefill
        self._keeps = bool(executor.has_caches or ports.caches)
        ids = ports.inputs["input_ids"]
        _check_sizes(ids, self._keeps)
        self.takes_batches = not isinstance(ids.shape[0], int)
        self.has_states = ports.has_states
        """are the first positions alone not to be had again, once there are more?"""
        masks = "attention_mask" in ports.inputs and not self.has_states  # a mask does not keep padding out of a state
        self.takes_padding = takes_padding and self.takes_batches and masks
        """may rows of a batch have prompts of different lengths, padded on the left?"""
        self.takes_many = self._keeps and prefill is None and not isinstance(ids.shape[1], int)
        """may a step have several tokens when there are some already?"""
        self._outputs = {pair.input.name: pair.output for pair in ports.caches}
        self._first_outputs = self._outputs
        self._first_kept: Mapping[str, str] = {}
        """outputs of the first graph by the caches that the executor keeps"""
        if prefill is not None:
            self._first_outputs = _outputs_by_key(prefill[0], [pair.input.name for pair in ports.caches])
            self._first_kept = _outputs_by_key(prefill[0], executor.cache_names)
        self._caches: dict[str, NDArray] = {}
        self._tokens: Tokens = np.zeros((1, 0), np.int64)
        self._length = 0
        self._mask: Array = np.zeros((1, 0), np.int64)
        self._positions: Array = self._mask
        self._encoded: dict[str, Array] = {}
        """inputs by role that stay the same in all steps, by prompt"""
        self._prompts: npt.NDArray[np.intp] = np.zeros(1, np.intp)
        """the prompt of each row"""

    @property
    def length(self) -> int:
        """Positions seen of each row."""
        return self._length

    def begin(self, mask: npt.NDArray[np.int64]) -> None:
        """Set the mask of the prompts (batch, positions), 0 where they are padded."""
        self._prompts = np.arange(len(mask))
        self._set_mask(mask)

    def _set_mask(self, mask: npt.NDArray[np.int64]) -> None:
        self._mask = mask
        self._positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)

    def pass_encoded(self, inputs: Mapping[str, Array], caches: Mapping[str, Array]) -> None:
        """Set what the encoder gave: inputs by role, and cross-attention caches by input name, one row a prompt."""
        self._encoded = dict(inputs)
        self._set_encoded()
        for name, value in caches.items():
            self._set_cache(name, value)

    def _set_encoded(self) -> None:
        """Set the inputs of what is encoded, for the prompt of each row."""
        for executor, ports in filter(None, ((self._executor, self._ports), self._prefill)):
            for role, value in self._encoded.items():
                if role in ports.inputs:
                    port = ports.inputs[role]
                    executor.set_input(port.name, value[self._prompts].astype(to_numpy(port.dtype)))

    def reset(self) -> None:
        """Forget all positions."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions: of a decoder with states, all of them or none."""
        assert not self.has_states or length in (0, self._length), "a state can't be cut"
        if self._executor.has_caches:
            self._executor.truncate_caches(length)
        if not length:
            self._caches.clear()
        elif length != self._length:
            for pair in self._ports.caches:
                if not pair.is_cross and pair.axis is not None:
                    kept = (*[slice(None)] * pair.axis, slice(0, length))
                    self._set_cache(pair.input.name, self._caches[pair.input.name].numpy()[kept])
        self._tokens, self._length = self._tokens[:, :length], length

    def cache_values(self) -> dict[str, Array]:
        """A copy of all caches by input name, kept and passed ones."""
        return {**self._executor.cache_values(), **{name: array.numpy() for name, array in self._caches.items()}}

    def set_caches(self, values: Mapping[str, Array], length: int) -> None:
        """Make the caches those of `length` positions that `cache_values` gave, of this or another decoder."""
        kept = set(self._executor.cache_names)
        self.reset()
        self._executor.set_caches({name: value for name, value in values.items() if name in kept})
        for name, value in values.items():
            if name not in kept:
                self._set_cache(name, value)
        self._length = length

    def select(self, rows: npt.NDArray[np.intp]) -> None:
        """Make row i of the batch what row `rows[i]` was."""
        if len(rows) == len(self._mask) and (rows == np.arange(len(rows))).all():
            return
        self._mask, self._positions = self._mask[rows], self._positions[rows]
        before, self._prompts = self._prompts, self._prompts[rows]
        same_prompts = len(before) == len(rows) and bool((before == self._prompts).all())
        if not same_prompts:
            self._set_encoded()
        if not self._keeps:
            self._tokens = self._tokens[rows]
        if self._executor.has_caches:
            self._executor.reorder_caches(rows.tolist())
        for pair in self._ports.caches:
            if not (pair.is_cross and same_prompts):  # a prompt's rows attend to the same positions
                self._set_cache(pair.input.name, self._caches[pair.input.name].numpy()[rows])

    def step(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """The logits (batch, vocabulary) behind new `tokens` (batch, count)."""
        if not self._keeps:
            self._tokens = tokens if not self._length else np.concatenate([self._tokens, tokens], axis=1)
            tokens = self._tokens
        first = self._length if self._keeps else 0
        is_prefill = self._prefill is not None and not self._length
        executor, ports = self._prefill if self._prefill is not None and is_prefill else (self._executor, self._ports)
        feed = self._feed(tokens, first, ports)
        if ports.caches and not self._length:
            self._set_empty(executor, ports, len(tokens))
        (logits,) = executor.infer(feed, (ports.logits,))
        self._length = first + tokens.shape[1]
        if is_prefill and self._first_kept:
            self._executor.set_caches({name: executor.get_output(o).numpy() for name, o in self._first_kept.items()})
        if self._ports.caches:
            self._pass_caches(executor, self._outputs if first else self._first_outputs)
        if logits.ndim == 3 and not logits.shape[1]:
            raise GenerationError(
                f"the decoder's logits {ports.logits!r} have the shape {logits.shape} for {tokens.shape[1]} tokens; "
                "expected those of one position or more"
            )
        found = logits[:, -1] if logits.ndim == 3 else logits
        return found if found.dtype == np.float32 else found.astype(np.float32)

    # -- inputs

    def _feed(self, tokens: Tokens, first: int, ports: DecoderPorts) -> dict[str, Array]:
        """The inputs of a step whose tokens begin at position `first`: dense arrays, which are read in place."""
        last = first + tokens.shape[1]
        if last > self._mask.shape[1]:
            self._set_mask(doubled(self._mask, last, 1))
        by_role: dict[str, Array] = {
            "input_ids": tokens,
            "attention_mask": self._mask[:, :last],
            "position_ids": self._positions[:, first:last],
            "cache_position": np.arange(first, last),
            "token_type_ids": np.zeros(tokens.shape, np.int64),
            "use_cache": np.array(first > 0),
            "logits_to_keep": np.array(1),
        }
        feed: dict[str, Array] = {}
        for role, port in ports.inputs.items():
            if role in by_role:
                value = by_role[role]
                if role == "position_ids" and len(port.shape) == 3:
                    value = np.broadcast_to(value, (_AXES_OF_POSITIONS, *value.shape))
                value = np.asarray(value, to_numpy(port.dtype), order="C")
                feed[port.name] = value if value.ndim else np.full((1,) * len(port.shape), value)
        return feed

    # -- caches that are passed

    def _set_cache(self, name: str, value: Array) -> None:
        array = nd.array(value, self._executor.device)
        self._caches[name] = array
        self._executor.set_input_zero_copy(name, array)

    def _set_empty(self, executor: GraphModule, ports: DecoderPorts, batch: int) -> None:
        """Set caches of no positions, but for those that came with what was encoded. Those of cross-attention, which
        the first step gives, have its positions: other inputs may tell them, too."""
        hidden = self._encoded.get("encoder_hidden_states")
        for pair in ports.caches:
            if pair.input.name not in self._caches:
                length = hidden.shape[1] if pair.is_cross and hidden is not None else 0
                shape = [batch, *[length if size is None else size for size in pair.sizes[1:]]]
                executor.set_input(pair.input.name, np.zeros(shape, to_numpy(pair.input.dtype)))

    def _pass_caches(self, executor: GraphModule, outputs: Mapping[str, str | None]) -> None:
        """Make the outputs of a step the next one's inputs; caches of cross-attention stay those of the first step."""
        for pair in self._ports.caches:
            name = pair.input.name
            output = outputs[name]
            if output is not None and not (pair.is_cross and name in self._caches):
                self._caches[name] = executor.get_output(output)
                self._executor.set_input_zero_copy(name, self._caches[name])


def doubled(rows: npt.NDArray[np.int64], length: int, fill: int) -> npt.NDArray[np.int64]:
    """The rows (batch, positions), longer by `fill`: `length` positions, and room for as many again."""
    return np.pad(rows, ((0, 0), (0, 2 * length - rows.shape[1])), constant_values=fill)


def _outputs_by_key(prefill: GraphModule, caches: Sequence[str]) -> dict[str, str]:
    """The outputs of the first graph, by the caches of the second one that they are."""
    outputs = list(prefill.get_output_info()[0])
    found = {key: name for name in outputs if (key := cache_key(name)) is not None}
    missing = [name for name in caches if cache_key(name) not in found]
    if missing:
        raise GenerationError(
            f"the first decoder gives {', '.join(outputs)}; expected outputs with the layers and kinds of the inputs "
            f"{', '.join(missing)} of the decoder with past"
        )
    return {name: found[key] for name in caches if (key := cache_key(name)) is not None}


def _check_sizes(ids: Port, keeps: bool) -> None:
    """Raise `GenerationError` for tokens in a form that can't grow."""
    if len(ids.shape) != 2:
        raise GenerationError(f"the tokens are {ids}; expected (batch, positions)")
    if not keeps and isinstance(ids.shape[1], int):
        raise GenerationError(
            f"the model has no caches, and its tokens {ids} a fixed length; expected a symbolic one: export it with "
            "dynamic axes"
        )
