"""Analyses of graphs: orders, scopes, users, free variables, counts, and the check of the invariants. All iterative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from relayc.relay.errors import MalformedGraphError
from relayc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Var, cycle
from relayc.relay.op.base import OpDef
from relayc.te.ir import IRModule, Node, post_order as te_post_order

__all__ = [
    "Scope",
    "all_vars",
    "body_order",
    "bound_vars",
    "count_uses",
    "evaluation_order",
    "free_vars",
    "get_total_mac_number",
    "list_op_freqs",
    "outer_operands",
    "outer_order",
    "post_order_visit",
    "scopes",
    "users",
    "well_formed",
]


def evaluation_order(root: Expr) -> Iterator[Expr]:
    """Every expression reachable from `root`, once each, operands first; a `Let` comes between its value and its body.

    Bodies of function values are included. Raises MalformedGraphError when the graph has a cycle.
    """
    below = root.order_below()
    return _evaluated(root) if below is None else cast("Iterator[Expr]", chain(below, (root,)))


def _evaluated(root: Expr) -> Iterator[Expr]:
    done: set[int] = set()
    open_: set[int] = set()
    stack: list[Any] = [root]  # an expression in a tuple: its operands are done
    while stack:
        current = stack.pop()
        if current.__class__ is tuple:
            (current,) = current
            key = id(current)
            if isinstance(current, Let) and key not in done:
                done.add(key)
                yield current
                stack += ((current,), current.body)
                continue
            open_.discard(key)
            if key not in done:
                done.add(key)
                yield current
            continue
        key = id(current)
        if key in done:
            continue
        if key in open_:
            raise cycle(current)
        children = (current.value,) if isinstance(current, Let) else current.node_children()
        if not children:
            done.add(key)
            yield current
            continue
        open_.add(key)
        stack.append((current,))
        stack += children[::-1]


def body_order(function: Function) -> Sequence[Expr]:
    """The expressions of a function's body in evaluation order."""
    below = function.order_below()
    return list(_evaluated(function.body)) if below is None else below


def outer_order(body: Expr, leaves: Container[int] = ()) -> Iterator[Expr]:
    """Expressions of a body, once each, operands first, without those inside functions that are called.

    The operands of expressions whose id is in `leaves` are left out.
    """
    done: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(body, False)]
    while stack:
        expr, ready = stack.pop()
        if id(expr) in done:
            continue
        if ready:
            done.add(id(expr))
            yield expr
            continue
        stack.append((expr, True))
        if id(expr) not in leaves:
            stack.extend((operand, False) for operand in reversed(outer_operands(expr)) if id(operand) not in done)


def outer_operands(expr: Expr) -> Sequence[Expr]:
    """The operands of an expression, without the function that it calls."""
    return expr.args if isinstance(expr, Call) else cast("Sequence[Expr]", tuple(expr.node_children()))


def post_order_visit(expr: Expr, visit: Callable[[Expr], None]) -> None:
    """Call `visit` on every expression, operands first (TVM: `relay.analysis.post_order_visit`)."""
    for e in evaluation_order(expr):
        visit(e)


def users(root: Expr) -> dict[int, list[Expr]]:
    """id of an expression -> the expressions that use it, one entry per use, in evaluation order."""
    found: dict[int, list[Expr]] = {}
    for e in evaluation_order(root):
        found.setdefault(id(e), [])
        for child in e.node_children():
            found.setdefault(id(child), []).append(e)
    return found


def count_uses(nodes: Iterable[Node]) -> dict[int, int]:
    """id of an expression -> number of its uses by `nodes`; 0 for those of them that none uses."""
    uses: dict[int, int] = {}
    for e in nodes:
        uses.setdefault(id(e), 0)
        for child in e.node_children():
            uses[id(child)] = uses.get(id(child), 0) + 1
    return uses


@dataclass(eq=False, slots=True)
class Scope:
    """A region evaluated as a whole: the body of a function or of a `Let`, or one branch of an `If`."""

    owner: Node | None
    parent: Scope | None
    depth: int

    @staticmethod
    def common(a: Scope, b: Scope) -> Scope:
        """The innermost scope around both."""
        while a is not b:
            if a.depth >= b.depth:
                assert a.parent is not None
                a = a.parent
            else:
                assert b.parent is not None
                b = b.parent
        return a


_SCOPED = frozenset((Function, If, Let))
"""The expressions that open scopes."""


def scopes(root: Expr) -> tuple[dict[int, Scope], dict[tuple[int, str], Scope]]:
    """Where each expression is evaluated: the innermost scope around all its uses.

    Gives id of expression -> scope, and (id of owner, field name) -> the scope that the "body" of a Function or Let or
    the "true_branch" or "false_branch" of an If opens.
    """
    top = Scope(None, None, 0)
    below = root.order_below()
    if below is not None and _SCOPED.isdisjoint(map(type, below)):
        body = Scope(root, top, 1)
        return {id(root): top, **dict.fromkeys(map(id, below), body)}, {(id(root), "body"): body}
    placed: dict[int, Scope] = {id(root): top}
    opened: dict[tuple[int, str], Scope] = {}

    def use(child: Expr, scope: Scope) -> None:
        known = placed.get(id(child))
        placed[id(child)] = scope if known is None else Scope.common(known, scope)

    for e in reversed(list(te_post_order(root))):
        scope = placed[id(e)]
        for name in e.child_fields:
            inner = scope
            if name in ("body", "true_branch", "false_branch"):
                inner = opened.setdefault((id(e), name), Scope(e, scope, scope.depth + 1))
            value = getattr(e, name)
            for child in value if isinstance(value, tuple) else (value,):
                if isinstance(child, Expr):
                    use(child, inner)
    return placed, opened


def free_vars(expr: Expr) -> list[Var]:
    """Variables used in `expr` but bound nowhere in it, in order of first use."""
    order = list(evaluation_order(expr))
    bound = {id(v) for e in order for v in _binds(e)}
    return [e for e in order if isinstance(e, Var) and id(e) not in bound]


def bound_vars(expr: Expr) -> list[Var]:
    """Parameters and `Let` variables defined in `expr`, innermost first."""
    return [v for e in evaluation_order(expr) for v in _binds(e)]


def all_vars(expr: Expr) -> list[Var]:
    """Bound and free variables."""
    bound = bound_vars(expr)
    return bound + free_vars(expr)


def _binds(e: Expr) -> tuple[Var, ...]:
    return e.params if isinstance(e, Function) else (e.var,) if isinstance(e, Let) else ()


def list_op_freqs(program: Expr | IRModule) -> dict[str, int]:
    """Operator name -> number of calls, most frequent first."""
    counted = Counter(call.operator.name for call in _op_calls(program))
    return dict(counted.most_common())


def get_total_mac_number(program: Expr | IRModule) -> int:
    """Multiply-accumulates of one evaluation, by the operators' own counts."""
    return sum(call.operator.macs([a.ty for a in call.args], call.ty) for call in _op_calls(program))


def _op_calls(program: Expr | IRModule) -> Iterator[Call]:
    roots = program.functions.values() if isinstance(program, IRModule) else (program,)
    for root in roots:
        yield from (e for e in evaluation_order(root) if isinstance(e, Call) and isinstance(e.op, OpDef))


def well_formed(program: Function | IRModule) -> None:
    """Check a function or every function of a module.

    Raises MalformedGraphError for a cycle, a variable bound twice or used outside its binding, a call of a function
    the module does not have, or an expression whose type is not what its parts give.
    """
    if isinstance(program, IRModule):
        for function in program.functions.values():
            well_formed(function)
            _require_globals(function, program)
        return
    seen: set[int] = set()
    for v in bound_vars(program):
        if id(v) in seen:
            raise MalformedGraphError(f"variable {v.name} is bound twice")
        seen.add(id(v))
    free = free_vars(program)
    if free:
        names = ", ".join(f"{v.name}{f' ({v.span})' if v.span is not None else ''}" for v in free)
        raise MalformedGraphError(f"variables used but bound nowhere: {names}")
    for e in evaluation_order(program):
        if e.child_fields and e.replace().ty is not e.ty:
            where = f" at {e.span}" if e.span is not None else ""
            raise MalformedGraphError(f"an expression of type {e.ty} has parts that give {e.replace().ty}{where}")


def _require_globals(function: Function, module: IRModule) -> None:
    for e in evaluation_order(function):
        if isinstance(e, GlobalVar):
            if e.name not in module:
                raise MalformedGraphError(f"the module has no function @{e.name}; it has: {', '.join(module)}")
            if module[e.name].ty is not e.ty:
                raise MalformedGraphError(f"@{e.name} is used as {e.ty} but is {module[e.name].ty}")
