"""Rules of SimplifyExpr that drop the repetition of a tensor before an operator that broadcasts."""

from __future__ import annotations

from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.indexing import Gather
from relayc.relay.op.nn.dense import BatchMatmul
from relayc.relay.op.transform import Tile
from relayc.relay.pattern import Found, PatternRule, is_op, wildcard
from relayc.relay.transform.builders import is_call_of, reshaped, transposed
from relayc.relay.type import dims_equal

__all__ = ["RULES_OF_REPETITION"]


class BroadcastToInBinary(PatternRule):
    """f(broadcast_to(x), y) = f(x, y) when x and y broadcast to the same result by themselves; broadcast_to(x, its own
    shape) = x"""

    pattern = is_op("broadcast_to", "add", "subtract", "multiply", "divide", "maximum", "minimum", "where")

    def replace(self, call: Call, found: Found) -> Expr | None:
        if is_call_of(call, "broadcast_to"):
            return call.args[0] if call.args[0].ty is call.ty else None
        sources = [_without_broadcast(a) for a in call.args]
        for i, source in enumerate(sources):
            if source is call.args[i]:
                continue
            args = (*call.args[:i], source, *call.args[i + 1 :])
            slim = make_call(call.operator, args, call.span)
            if slim.ty is call.ty:
                return slim
        return None


class TileOfOne(PatternRule):
    """tile(x, r) = concatenate(x, x, ...) = broadcast_to(x) if x has size 1 along the repeated dimension"""

    pattern = is_op("tile", "concatenate")

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, rank = call.args[0], len(call.shape)
        if any(a is not x for a in call.args):
            return None
        shape = (*(1,) * (rank - len(x.shape)), *x.shape)
        grows = [isinstance(d, int) and d == 1 for d in shape]
        if not all(g or dims_equal(a, b) for g, a, b in zip(grows, shape, call.shape, strict=True)):
            return None
        return make_call("broadcast_to", (x,), call.span, shape=call.shape)


def _without_broadcast(e: Expr) -> Expr:
    return e.args[0] if isinstance(e, Call) and is_call_of(e, "broadcast_to") else e


class GatherAtBroadcast(PatternRule):
    """gather(x, broadcast_to(i)) = gather(x, i), broadcasting, where i was broadcast to the other dimensions of x"""

    x, indices = wildcard(), wildcard()
    pattern = is_op("gather")(x, is_op("broadcast_to")(indices))

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, indices, op = found[self.x], found[self.indices], call.op
        assert isinstance(op, Gather)
        missing = len(x.shape) - len(indices.shape)
        slim = reshaped(indices, (*(1,) * missing, *indices.shape))
        made = make_call("gather", (x, slim), call.span, axis=op.axis, broadcasts=True)
        return made if made.ty is call.ty else None


class ProductWithTiled(PatternRule):
    """batch_matmul(a, tile(b, (r, 1, 1))) = batch_matmul(a', b) with a' of shape (r, batch of b, M, K)"""

    a, b = wildcard(), wildcard()
    tiled = is_op("tile")(b)
    pattern = is_op("nn.batch_matmul")(a, tiled | is_op("transpose")(tiled).has_attr({"axes": (0, 2, 1)}))

    def replace(self, call: Call, found: Found) -> Expr | None:
        a, b, tiled, op = found[self.a], found[self.b], found.call(self.tiled), call.op
        assert isinstance(tiled.op, Tile) and isinstance(op, BatchMatmul)
        repeats, *others = tiled.op.reps
        if len(b.shape) != 3 or len(tiled.op.reps) != 3 or others != [1, 1] or len(a.shape) != 3:
            return None
        if not dims_equal(a.shape[0], tiled.shape[0]):
            return None
        one = b if call.args[1] is tiled else transposed(b, (0, 2, 1))
        rows = reshaped(a, (repeats, b.shape[0], *a.shape[1:]))
        return reshaped(make_call(op, (rows, one), call.span), call.shape, call.span)


RULES_OF_REPETITION: tuple[type[PatternRule], ...] = (
    BroadcastToInBinary,
    TileOfOne,
    GatherAtBroadcast,
    ProductWithTiled,
)
