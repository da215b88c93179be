"""How tokens are chosen, and when a generation ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, TypedDict

import numpy as np

from relayc.backend.runtime.checks import as_integer
from relayc.generation.errors import GenerationError

__all__ = ["MOST_IDS", "GenerationOptions", "OptionValues", "options_from"]

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
"""Options that ask for sampling when a caller passes one of them, a temperature of 0 excepted."""


@dataclass(frozen=True)
class GenerationOptions:
    """Options of a generation, by the names of transformers' `GenerationConfig`, whose defaults they have."""

    max_new_tokens: int = 128
    """most tokens to generate for a prompt"""
    min_new_tokens: int = 0
    """tokens before which none of `eos_token_id` is chosen"""
    do_sample: bool = False
    """draw from the probabilities, instead of taking the likeliest token"""
    temperature: float = 1.0
    """what logits are divided by; 0 is the likeliest token"""
    top_k: int = 0
    """sample among so many likeliest tokens; 0: all"""
    top_p: float = 1.0
    """sample among the likeliest tokens whose probabilities sum up to this"""
    min_p: float = 0.0
    """sample among tokens with at least this share of the likeliest one's probability"""
    repetition_penalty: float = 1.0
    """above 1, tokens that the sequence has become less likely"""
    no_repeat_ngram_size: int = 0
    """no sequence of so many tokens comes twice; 0: no limit"""
    suppress_tokens: tuple[int, ...] = ()
    """tokens that are never chosen"""
    begin_suppress_tokens: tuple[int, ...] = ()
    """tokens that are not chosen first"""
    forced_bos_token_id: int | None = None
    """the token after a prompt of one token"""
    forced_eos_token_id: int | None = None
    """the last token, if a generation is as long as it may be"""
    num_beams: int = 1
    """sequences kept in beam search; 1: none"""
    length_penalty: float = 1.0
    """exponent of the length by which beams' scores are divided"""
    early_stopping: bool | str = False
    """beams end with the first `num_beams` complete ones (True), by a heuristic (False), or only when none can improve
    ("never")"""
    eos_token_id: tuple[int, ...] = ()
    """tokens that end a sequence"""
    pad_token_id: int = 0
    """token that fills shorter prompts of a batch"""
    stop: tuple[str, ...] = ()
    """texts that end a sequence; they are not part of its text"""
    seed: int | None = None
    """seed of sampling; None: a different one each time"""


class OptionValues(TypedDict, total=False):
    """`GenerationOptions` as keyword arguments; sequences may be single values."""

    max_new_tokens: int
    min_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    forced_bos_token_id: int
    forced_eos_token_id: int
    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    eos_token_id: int | Sequence[int]
    pad_token_id: int
    stop: str | Sequence[str]
    seed: int


MOST_IDS = 2**31
"""Integers of options are below this, and token ids of models that do not tell their vocabulary: ids have 32 bits or
64."""

_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda v: v >= 1, "1 or more"),
    "min_new_tokens": (lambda v: v >= 0, "0 or more"),
    "temperature": (lambda v: v >= 0, "0 or more"),
    "top_k": (lambda v: v >= 0, "0 or more"),
    "top_p": (lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "min_p": (lambda v: 0 <= v <= 1, "0 to 1"),
    "repetition_penalty": (lambda v: v > 0, "above 0"),
    "no_repeat_ngram_size": (lambda v: v >= 0, "0 or more"),
    "num_beams": (lambda v: v >= 1, "1 or more"),
    "length_penalty": (lambda v: abs(v) <= 10, "-10 to 10"),
    "seed": (lambda v: v >= 0, "0 or more"),
}
"""What numbers must be, beyond their type."""


def options_from(defaults: GenerationOptions, passed: Mapping[str, Any]) -> GenerationOptions:
    """The options with those passed changed. Raises `GenerationError` for unknown ones and for invalid values.

    Passing temperature, top_k, top_p or min_p asks for sampling, and a temperature of 0 for the likeliest token.
    """
    known = [f.name for f in fields(GenerationOptions)]
    strange = [name for name in passed if name not in known]
    if strange:
        raise GenerationError(f"no option {', '.join(strange)}; the options are {', '.join(known)}")
    values = {name: _value(name, value) for name, value in passed.items()}
    if "do_sample" not in values and any(values.get(name) is not None for name in _SAMPLING):
        values["do_sample"] = True
    options = replace(defaults, **values)
    if options.temperature == 0:
        options = replace(options, do_sample=False, temperature=1.0)
    if options.num_beams > 1 and (options.do_sample or options.stop):
        what = "sampling" if options.do_sample else "stop="
        raise GenerationError(f"num_beams={options.num_beams} with {what}; expected beams without it, or num_beams=1")
    return options


def _value(name: str, value: Any) -> Any:
    """An option's value in its form. Raises `GenerationError` for one that is out of range, or of another type."""
    default = getattr(GenerationOptions, name)
    if isinstance(default, tuple):
        return _values(name, value)
    if value is None:
        return default
    if name == "early_stopping" and isinstance(value, str):
        found, expected = (value if value == "never" else None), 'True, False or "never"'
    elif isinstance(default, bool):
        found, expected = (bool(value) if isinstance(value, bool | np.bool_) else None), "True or False"
    else:
        check, expected = _RANGES.get(name, (lambda v: True, "an integer"))
        found = _float(value) if isinstance(default, float) else _integer(value)
        found = found if found is not None and check(found) else None
    if found is None:
        raise GenerationError(f"{name}={value!r:.80}; expected {expected}")
    return found


def _values(name: str, value: Any) -> tuple[Any, ...]:
    """The texts or token ids of an option that takes several, or a single one."""
    item, expected = (_text, "texts") if name == "stop" else (_integer, "token ids")
    is_single = not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping)
    is_single |= getattr(value, "ndim", 1) == 0  # numpy's arrays without dimensions say that they can be iterated
    found = () if value is None else tuple(map(item, (value,) if is_single else value))
    if None in found:
        raise GenerationError(f"{name}={value!r:.80}; expected {expected}")
    return found


def _integer(value: Any) -> int | None:
    """The integer that a value is; JSON may have 2.0 for 2. None for others, and for those beyond 32 bits."""
    found = as_integer(int(value) if isinstance(value, float) and value.is_integer() else value)
    return found if found is not None and abs(found) < MOST_IDS else None


def _float(value: Any) -> float | None:
    """The finite number that a value is; None for others."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if isfinite(found) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
