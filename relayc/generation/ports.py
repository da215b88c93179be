"""What the inputs and outputs of a decoder are: tokens, masks, positions, caches and logits, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relayc.backend.runtime.sizes import Size, size_text
from relayc.generation.errors import GenerationError
from relayc.runtime import GraphModule

__all__ = ["CachePort", "DecoderPorts", "Port", "cache_key", "find_decoder_ports", "find_input", "find_output"]

_INPUT_ROLES = {
    "input_ids": r"(decoder_)?input_ids?|(input_)?tokens?|(token_)?ids",
    "attention_mask": r"(decoder_)?(attention|padding)_mask|mask",
    "position_ids": r"position_ids?|positions?",
    "cache_position": r"cache_positions?",
    "token_type_ids": r"token_type_ids|segment_ids",
    "encoder_hidden_states": r"encoder_(hidden_states|outputs?|output_0)|last_hidden_state",
    "encoder_attention_mask": r"encoder_(attention|padding)_mask",
    "use_cache": r"use_cache(_branch)?",
    "logits_to_keep": r"(num_)?logits_to_keep",
    "input_features": r"input_(features|values)|audio_features|pixel_values|input_values|mel",
}
"""What an input is for, and the names that exporters give it (in lower case)."""

_OUTPUT_ROLES = {
    "logits": r"(lm_)?logits|prediction_scores|scores",
    "encoder_hidden_states": r"(encoder_)?(last_)?hidden_states?|encoder_outputs?",
}
"""What an output is for, and its names."""

_KINDS = {
    "key": 0, "keys": 0, "k": 0, "value": 1, "values": 1, "v": 1, "conv": 2, "recurrent": 3, "ssm": 3,
}  # fmt: skip
_STATES = {2, 3}
"""Kinds that are states: what a causal convolution or a recurrence keeps of all positions, in one size."""
_CROSS = {"cross", "encoder"}


@dataclass(frozen=True)
class Port:
    """An input or output of a compiled model: name, shape with symbolic sizes by name, element type."""

    name: str
    shape: tuple[Size, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(size_text, self.shape))}]"


@dataclass(frozen=True)
class CachePort:
    """A cache that is passed from run to run: its input, and the output that is the next run's input.

    `axis` is that of positions, None for a state: what a causal convolution or a recurrence keeps of all positions, of
    which none can be dropped. A cross-attention cache holds those of the encoder, which do not grow.
    """

    input: Port
    output: str | None
    axis: int | None
    is_cross: bool
    sizes: tuple[int | None, ...] = ()
    """the sizes that input or output declare, None where they are symbolic"""


@dataclass(frozen=True)
class DecoderPorts:
    """The inputs of a decoder by role, its output of logits, and the caches that the executor does not keep."""

    inputs: Mapping[str, Port]
    logits: str
    caches: tuple[CachePort, ...] = field(default=())

    @property
    def has_states(self) -> bool:
        """Does a step depend on earlier ones by more than caches of positions?"""
        return any(cache.axis is None for cache in self.caches)


def ports_of(info: tuple[Mapping[str, Sequence[Size]], Mapping[str, str]]) -> dict[str, Port]:
    """The ports that `get_input_info` or `get_output_info` describes, by name."""
    shapes, dtypes = info
    return {name: Port(name, tuple(shapes[name]), dtypes[name]) for name in dtypes}


def find_input(executor: GraphModule, role: str, names: Mapping[str, str]) -> Port | None:
    """The input of `role`: the one that `names` gives, or else one that is named like it."""
    return _find(role, _INPUT_ROLES[role], ports_of(executor.get_input_info()), names)


def find_output(executor: GraphModule, role: str, names: Mapping[str, str]) -> Port | None:
    """The output of `role`: the one that `names` gives, or else one that is named like it."""
    return _find(role, _OUTPUT_ROLES[role], ports_of(executor.get_output_info()), names)


def find_decoder_ports(
    executor: GraphModule, names: Mapping[str, str], caches: Mapping[str, str] | None = None
) -> DecoderPorts:
    """The ports of a decoder. `names` are names of inputs and of "logits" by role, `caches` outputs by input.

    Raises `GenerationError`, which lists what there is, for a model without tokens or logits, and for an input that
    nothing is known to fill.
    """
    inputs, outputs = ports_of(executor.get_input_info()), ports_of(executor.get_output_info())
    _check_names(names, caches or {}, inputs, outputs)
    roles: dict[str, Port] = {}
    for role, pattern in _INPUT_ROLES.items():
        found = _find(role, pattern, {n: p for n, p in inputs.items() if n not in (caches or {})}, names)
        if found is not None and found not in roles.values():
            roles[role] = found
    rest = [port for port in inputs.values() if port not in roles.values()]
    if "input_ids" not in roles:
        roles["input_ids"] = _only([p for p in rest if p.dtype in ("int64", "int32")], "input_ids", inputs)
        rest.remove(roles["input_ids"])
    pairs = _paired(rest, outputs, caches or {})
    strange = [port for port in rest if port.name not in {pair.input.name for pair in pairs}]
    if strange:
        raise GenerationError(
            f"nothing is known to fill the input {', '.join(map(str, strange))}; the inputs are {_text(inputs)}, the "
            f"outputs {_text(outputs)}. Name what it is: names={{role: input}} with a role of "
            f"{', '.join(_INPUT_ROLES)}, or caches={{input: output}}"
        )
    taken = {pair.output for pair in pairs}
    logits = _find("logits", _OUTPUT_ROLES["logits"], outputs, names)
    if logits is None:
        others = [p for p in outputs.values() if p.name not in taken and "float" in p.dtype and len(p.shape) in (2, 3)]
        logits = _only(others, "logits", outputs)
    return DecoderPorts(roles, logits.name, tuple(pairs))


def cache_key(name: str) -> tuple[int, int, bool] | None:
    """(Layer, kind, is it of cross-attention?) of a cache by its name; None for other names.

    Kinds are 0 for keys, 1 for values, 2 for the state of a convolution and 3 for that of a recurrence.
    """
    words = re.findall(r"[a-z]+|\d+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    numbers = [int(word) for word in words if word.isdigit()]
    kinds = [_KINDS[word] for word in words if word in _KINDS]
    # "past_key_values.0.value" has the words key and values of "past_key_values", then its own
    if len(numbers) == 1 and kinds:
        return numbers[0], kinds[-1], bool(_CROSS & {*words})
    if len(numbers) == 2 and numbers[1] in (0, 1):
        return numbers[0], numbers[1], bool(_CROSS & {*words})
    return None


def _find(role: str, pattern: str, ports: Mapping[str, Port], names: Mapping[str, str]) -> Port | None:
    if role in names:
        return ports.get(names[role])
    matching = [port for name, port in ports.items() if re.fullmatch(pattern, name.lower())]
    return matching[0] if matching else None


def _only(candidates: Sequence[Port], role: str, ports: Mapping[str, Port]) -> Port:
    """The only candidate for a role."""
    if len(candidates) != 1:
        many = f"{len(candidates)} may be" if candidates else "none is known to be"
        known = {**_INPUT_ROLES, **_OUTPUT_ROLES}[role]
        raise GenerationError(
            f"the model has no {role}: of {_text(ports)}, {many}; expected a name like {known}, or "
            f"names={{{role!r}: its name}}"
        )
    return candidates[0]


def _paired(inputs: Iterable[Port], outputs: Mapping[str, Port], given: Mapping[str, str]) -> list[CachePort]:
    """The caches among `inputs`, with the outputs that continue them."""
    candidates = [port for port in inputs if len(port.shape) >= 3]
    keys = {key: name for name in outputs if (key := cache_key(name)) is not None}
    by_name = {port.name: cache_key(port.name) for port in candidates}
    named = {name: keys[key] for name, key in by_name.items() if key in keys}
    if all(key in keys for key in by_name.values() if key is not None and not key[2]) and None not in by_name.values():
        return [_cache(p, given.get(p.name) or named.get(p.name), outputs, by_name[p.name]) for p in candidates]
    unpaired = [port for port in outputs.values() if len(port.shape) >= 4 and port.name not in given.values()]
    free = [port for port in candidates if port.name not in given]
    if free and len(free) != len(unpaired):
        return [_cache(p, given[p.name], outputs, None) for p in candidates if p.name in given]
    in_order = {**given, **{p.name: o.name for p, o in zip(free, unpaired, strict=True)}}
    return [_cache(p, in_order[p.name], outputs, by_name[p.name]) for p in candidates]


def _cache(
    port: Port, output: str | None, outputs: Mapping[str, Port], key: tuple[int, int, bool] | None
) -> CachePort:
    after = outputs[output].shape if output is not None else port.shape
    sizes = tuple(
        next((d for d in pair if isinstance(d, int)), None) for pair in zip(port.shape, after, strict=True)
    )  # fmt: skip
    open_axes = [axis for axis, size in enumerate(sizes) if axis and size is None]
    if key[1] in _STATES if key is not None else not open_axes:  # of a name that tells nothing, the form decides
        if open_axes:
            raise GenerationError(
                f"the state {port} has symbolic sizes; expected fixed ones but for the batch: export it without "
                "dynamic axes"
            )
        return CachePort(port, output, None, False, sizes)
    if not open_axes:
        raise GenerationError(
            f"the cache {port} has a fixed length; expected a symbolic one: export it with dynamic axes"
        )
    axis = open_axes[0] if len(open_axes) == 1 else len(sizes) - 2
    return CachePort(port, output, axis, key is not None and key[2], sizes)


def _check_names(
    names: Mapping[str, str], caches: Mapping[str, str], inputs: Mapping[str, Port], outputs: Mapping[str, Port]
) -> None:
    for role, name in names.items():
        if role not in _INPUT_ROLES and role not in _OUTPUT_ROLES:
            known = ", ".join({**_INPUT_ROLES, **_OUTPUT_ROLES})
            raise GenerationError(f"names={{{role!r}: {name!r}}}: no such role; the roles are {known}")
        ports = inputs if role in _INPUT_ROLES else outputs
        if name not in ports and not (role in _OUTPUT_ROLES and role in _INPUT_ROLES):
            raise GenerationError(f"names={{{role!r}: {name!r}}}: the model has {_text(ports)}")
    for name, output in caches.items():
        if name not in inputs or output not in outputs:
            raise GenerationError(
                f"caches={{{name!r}: {output!r}}}: the inputs are {_text(inputs)}, the outputs {_text(outputs)}"
            )


def _text(ports: Mapping[str, Port]) -> str:
    return ", ".join(map(str, ports.values())) or "none"
