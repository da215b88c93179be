"""The size variables of one import, by name, and what is learned of them on the way.

Converting nodes may find that two sizes must be equal: an operator wants it, and nothing forbids it. Equalities of a
variable are solved, and the model is converted again with what is known then; the rest is checked when the model runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from relayc.relay.sizes import Assumptions, dims_equal, evaluate, size_variables
from relayc.te.ir import collect
from relayc.te.tir import Dim, Max, Min, PrimExpr, SizeVar

__all__ = ["MOST_SIZES", "SizeTable"]

MOST_SIZES = 16
"""Sizes that another is an expression of, at most; one of more is a size of its own, which is computed at run time."""


@dataclass
class SizeTable:
    """`solved` gives variables by others or by numbers; `unnamed` are those that the model has no name for.

    Names that begin with "#" are the importer's own. `computed` are those that the program gives a value, in that
    order, with the bodies (of loops and branches) that they belong to; `may_be_one` are sizes that are 1 on one way
    through the model and not on another, so that they may broadcast: no equality is learned of them; nor of those
    `named` for an expression of others.
    """

    variables: dict[str, SizeVar] = field(default_factory=dict)
    solved: dict[str, Dim] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    computed: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    may_be_one: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, key: Hashable) -> int:
        """The number of a place in the model, the same each time the model is converted."""
        return self._numbers.setdefault(key, len(self._numbers))

    def compute(self, name: str, bodies: tuple[str, ...]) -> Dim:
        """What is known of a size that the program computes in `bodies`."""
        self.computed.setdefault(name, (len(self.computed), bodies))
        return self.dim(name, unnamed=True)

    def variable(self, name: str, unnamed: bool = False) -> SizeVar:
        """The variable of that name."""
        if unnamed:
            self.unnamed.add(name)
        return self.variables.setdefault(name, SizeVar(name))

    def dim(self, name: str, unnamed: bool = False) -> Dim:
        """What is known of the size `name`: a number, an expression of other sizes, or its variable."""
        return self.known(self.variable(name, unnamed))

    def known(self, d: Dim) -> Dim:
        """A size with what is solved put in."""
        return evaluate(d, self.solved)

    def solve(self, equal: Iterable[tuple[Dim, Dim]]) -> bool:
        """Learn from equalities. False when there was nothing new."""
        before = len(self.solved)
        for pair in equal:
            a, b = map(self.known, pair)
            sides = ((a, b), (b, a))
            choices = [(x, y) for x, y in sides if isinstance(x, SizeVar) and self._can_be(x.name, y)]
            if dims_equal(a, b) or not choices:
                continue
            variable, value = max(choices, key=lambda c: c[0].name in self.unnamed)
            self.solved[variable.name] = value
            self.solved = {name: evaluate(d, {variable.name: value}) for name, d in self.solved.items()}
        return len(self.solved) > before

    def _can_be(self, name: str, value: Dim) -> bool:
        """May the variable be replaced by the expression? What is in it must be known wherever and whenever it is.

        A dimension of an input that has a name is not replaced by a clipped one, as of a slice, nor one that was named
        by what it is: kernels would count in that everywhere. The two are compared when the model runs.
        """
        named = name not in self.unnamed and name not in self.computed
        if named and isinstance(value, PrimExpr) and collect(value, (Min, Max)):
            return False
        inputs, of = (-1, ()), size_variables([value])
        number, bodies = self.computed.get(name, inputs)
        others = [self.computed.get(v, inputs) for v in of]
        known = all(n <= number and bodies[: len(around)] == around for n, around in others)
        return known and name not in of and name not in self.may_be_one | self.named

    def known_in(self, d: Dim, bodies: tuple[str, ...]) -> bool:
        """Is a size known in these bodies, and not only in some inside of them?"""
        around = [self.computed.get(name, (-1, ()))[1] for name in size_variables([d])]
        return all(bodies[: len(a)] == a for a in around)

    def open(self, assumed: Assumptions) -> list[tuple[Dim, Dim, str]]:
        """The equalities that nothing learned settles, and where they are needed."""
        placed = zip(assumed.equal, assumed.places, strict=True)
        checks = [(self.known(a), self.known(b), place) for (a, b), place in placed]
        return [(a, b, place) for a, b, place in checks if not dims_equal(a, b)]
