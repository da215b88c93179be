"""The size variables of one import, and the equalities between them.

Converters may find that an operator requires two sizes to be equal. Equalities are solved for a variable, and the model
is converted again with the solution; the others are checked at run time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from relayc.relay.sizes import Assumptions, dims_equal, evaluate, size_variables
from relayc.te.ir import collect
from relayc.te.tir import Dim, Max, Min, PrimExpr, SizeVar

__all__ = ["MOST_ROUNDINGS", "MOST_SIZES", "SizeTable"]

MOST_SIZES = 16
"""Most variables in a size expression; larger expressions become a variable of their own, computed at run time."""

MOST_ROUNDINGS = 12
"""Most quotients, minima and the like in a size expression; likewise. Sizes that are computed of each other, as those
of strided slices of strided slices, would otherwise double with each node."""


@dataclass
class SizeTable:
    """Size variables: `solved` maps variables to expressions of others; `unnamed` have no name in the model.

    With `broadcasting`, sizes that an operator broadcasts are not assumed to be equal where one may be 1; otherwise
    `broadcast` lists those that are, and `required` those that must be equal. Names that begin with "#" are the
    importer's. `computed` are bound by the program, in that order, with the bodies (of loops and branches) that they
    belong to; `may_be_one` may be 1 on one path through the model and not on another, so that they may broadcast. No
    equalities are solved for them, nor for those `named` for an expression. `answers` are the values that conditions
    are taken to have in this version of the model, `asked` those for which it was converted. `rank` is that of inputs
    which the model declares without one.
    """

    broadcasting: bool = False
    rank: int | None = None
    variables: dict[str, SizeVar] = field(default_factory=dict)
    solved: dict[str, Dim] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    computed: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    may_be_one: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    answers: Mapping[str, bool] = field(default_factory=dict[str, bool])
    asked: dict[str, bool] = field(default_factory=dict)
    required: set[tuple[Dim, Dim]] = field(default_factory=set)
    broadcast: set[tuple[Dim, Dim]] = field(default_factory=set)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, key: Hashable) -> int:
        """The number of a place in the model, stable across conversions."""
        return self._numbers.setdefault(key, len(self._numbers))

    def compute(self, name: str, bodies: tuple[str, ...]) -> Dim:
        """Declare a size that the program computes in `bodies`; returns its known value or its variable."""
        self.computed.setdefault(name, (len(self.computed), bodies))
        return self.dim(name, unnamed=True)

    def variable(self, name: str, unnamed: bool = False) -> SizeVar:
        """The variable of that name."""
        if unnamed:
            self.unnamed.add(name)
        return self.variables.setdefault(name, SizeVar(name))

    def dim(self, name: str, unnamed: bool = False) -> Dim:
        """The size `name`: its solution, a number or an expression of other sizes, or its variable."""
        return self.known(self.variable(name, unnamed))

    def known(self, d: Dim) -> Dim:
        """Substitute solved variables in a size."""
        return evaluate(d, self.solved)

    def learn(self, assumed: Assumptions) -> bool:
        """Solve what one conversion assumed. False when there was nothing new."""
        for pair, required in zip(assumed.equal, assumed.required, strict=True):
            (self.required if required else self.broadcast).add(pair)
        pairs = zip(assumed.equal, assumed.required, strict=True)
        return self._solve([pair for pair, required in pairs if required or not self.broadcasting])

    def assumes_broadcasts_equal(self) -> bool:
        """Were sizes that broadcast taken to be equal, which nothing else requires?"""
        roots: dict[Dim, Dim] = {}

        def root(d: Dim) -> Dim:
            while d in roots:
                d = roots[d]
            return d

        for a, b in self.required:
            x, y = root(a), root(b)
            if x is not y and x != y:
                roots[x] = y
        return any(root(a) != root(b) for a, b in self.broadcast)

    def _solve(self, equal: Iterable[tuple[Dim, Dim]]) -> bool:
        """Solve equalities for variables. False when there was nothing new."""
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
        """May the variable be replaced by the expression, whose variables must be defined wherever it is?

        A named input dimension is not replaced by a clipped expression, as of a slice, nor a variable named for an
        expression: index arithmetic would get expensive everywhere. The two are compared at run time.
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
        """Is a size defined in these bodies, not only in nested ones?"""
        around = [self.computed.get(name, (-1, ()))[1] for name in size_variables([d])]
        return all(bodies[: len(a)] == a for a in around)

    def open(self, assumed: Assumptions) -> list[tuple[Dim, Dim, str]]:
        """The equalities that remain to be checked at run time, and their sources."""
        placed = zip(assumed.equal, assumed.places, strict=True)
        checks = [(self.known(a), self.known(b), place) for (a, b), place in placed]
        return [(a, b, place) for a, b, place in checks if not dims_equal(a, b)]
