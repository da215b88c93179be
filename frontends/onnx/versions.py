"""Versions of a model, each a conversion under other assumptions: see `relay.versions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from relayc.frontends.onnx.errors import SeveralRanksError, UnknownRankError
from relayc.frontends.onnx.sizes import SizeTable
from relayc.relay.errors import InternalCompileError
from relayc.relay.versions import EQUAL_SIZES, versions_of, with_versions, without_versions
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule

__all__ = ["Params", "in_versions"]

Params = dict[str, np.ndarray]
"""Weights that are parameters, by name."""

Convert = Callable[[SizeTable], tuple[IRModule, Params]]
"""Converts a model under the assumptions of a table. Raises CompileError."""

_MOST_ANSWERS = 4
"""Most versions of a model for other values of conditions, each of which is compiled."""

_MOST_CHOICES = 8
"""Most values of its conditions for which the conversion of a model is tried until one fits."""

_RANKS = (4, 3, 2, 1, 0)
"""Ranks that an input may have whose rank the model does not declare, in the order in which they are tried."""


def in_versions(convert: Convert) -> tuple[IRModule, Params]:
    """The converted model with its versions, also for each rank of inputs and their elements of undeclared rank."""
    try:
        return _of_one_rank(convert, None)
    except (SeveralRanksError, UnknownRankError) as error:
        tried = {rank: _attempted(lambda rank=rank: _of_one_rank(convert, rank)) for rank in _RANKS}
        found = {rank: result for rank, result in tried.items() if not isinstance(result, CompileError)}
        if not found:
            raise error
    (module, params), *_ = found.values()
    versions = versions_of(module)
    for rank, (other, _) in [*found.items()][1:]:
        versions.update({f"rank_{rank}_{name}": version for name, version in versions_of(other).items()})
        versions[f"rank_{rank}"] = other
    return _joined(without_versions(module), versions), params


def _of_one_rank(convert: Convert, rank: int | None) -> tuple[IRModule, Params]:
    """The converted model, and its versions for equal sizes and for other branches."""
    versions = dict[str, IRModule]()
    main, table = _settled(convert, rank, broadcasting=False)
    if table.assumes_broadcasts_equal():
        general, cautious = _settled(convert, rank, broadcasting=True)
        if not isinstance(general, CompileError):
            if not isinstance(main, CompileError):
                versions[EQUAL_SIZES] = main[0]
            main, table = general, cautious
    if isinstance(main, CompileError):
        raise main
    for number, answers in enumerate(_other_answers(table.asked)):
        others = SizeTable(rank=rank, broadcasting=table.broadcasting, answers=answers)
        other = _attempted(lambda others=others: convert(others))
        if not isinstance(other, CompileError):
            versions[f"branches_{number}"] = other[0]
    return _joined(main[0], versions), main[1]


def _settled(
    convert: Convert, rank: int | None, *, broadcasting: bool
) -> tuple[tuple[IRModule, Params] | CompileError, SizeTable]:
    """The model, converted for the first values of its conditions by which it can be, or why it can't be converted.

    A branch may fit at its If and still compute what a later node refuses: exporters squeeze what has to lose an axis
    only if its size is 1.
    """
    failed: list[tuple[CompileError, SizeTable]] = []
    choices: list[Mapping[str, bool]] = [{}]
    for answers in choices:  # that grow with each failure
        table = SizeTable(rank=rank, broadcasting=broadcasting, answers=answers)
        result = _attempted(lambda table=table: convert(table))
        if not isinstance(result, CompileError):
            return result, table
        failed.append((result, table))
        others = [other for other in _other_answers(table.asked) if other not in choices]
        choices += others[: _MOST_CHOICES - len(choices)]
    return failed[0]


def _attempted(convert: Callable[[], tuple[IRModule, Params]]) -> tuple[IRModule, Params] | CompileError:
    """The converted model, or why it can't be converted."""
    try:
        return convert()
    except InternalCompileError:
        raise
    except CompileError as error:
        return error


def _other_answers(asked: Mapping[str, bool]) -> list[dict[str, bool]]:
    """Values of conditions for which to convert a model again: all of them changed, and each by itself."""
    changes = [tuple(asked), *[(question,) for question in asked]]
    different = list(dict.fromkeys(change for change in changes if change))
    return [{q: taken != (q in change) for q, taken in asked.items()} for change in different[:_MOST_ANSWERS]]


def _joined(module: IRModule, versions: Mapping[str, IRModule]) -> IRModule:
    """The module with the "main" of others as versions, if they have the same inputs and weights, in order."""
    names = [p.name for p in module["main"].params]
    same = {name: v["main"] for name, v in versions.items() if [p.name for p in v["main"].params] == names}
    return with_versions(module, same)
