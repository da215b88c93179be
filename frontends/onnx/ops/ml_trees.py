"""Decision trees of ai.onnx.ml: TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.ml import POST_TRANSFORMS, class_labels, labelled, post_transformed
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.topi.trees import LEAF, MAX_FEATURES, NODE_FIELDS, pack_nodes

DOMAIN = "ai.onnx.ml"
_FIRST_WEIGHT, _AFTER_WEIGHT = NODE_FIELDS.index("if_true"), NODE_FIELDS.index("if_false")
"""The fields of a leaf that tell its weights; other nodes have their successors there."""
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_EQUAL, _MEMBER = 4, 6
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(slots=True)
class _Forest:
    """Tables of nodes, see `topi.trees.NODE_FIELDS`, and of leaves."""

    nodes: list[list[int]] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    connected: bool = False
    """must every node be reachable from a root?"""

    def branch(self, mode: int, feature: int, split: float, missing: bool) -> int:
        """Add a node, whose successors are set later; returns its number."""
        self.nodes.append([mode, feature, -1, -1, int(missing)])
        self.splits.append(split)
        return len(self.nodes) - 1

    def leaf(self, weights: Sequence[tuple[int, float]]) -> int:
        """Add a leaf with (target, weight) pairs; returns its number."""
        first = len(self.targets)
        self.targets.extend(target for target, _ in weights)
        self.weights.extend(weight for _, weight in weights)
        self.nodes.append([LEAF, 0, first, len(self.targets), 0])
        self.splits.append(0.0)
        return len(self.nodes) - 1

    def scores(self, node: OnnxNode, x: Expr, num_targets: int, aggregate: str) -> Expr:
        """Evaluate the trees on the rows of `x` and aggregate leaf weights: [N, num_targets]."""
        features = node.extent(x, 1, "the features")
        table = np.array(self.nodes, np.int32).reshape(-1, len(NODE_FIELDS))
        self._check(node, table, features, num_targets)
        kind = str(x.dtype)
        modes = tuple(sorted({int(m) for m in table[:, 0]} - {LEAF})) or (0,)
        result = op.tree_ensemble(
            x,
            Constant(pack_nodes(table, np.array(self.splits, kind))),
            Constant(np.array(self.targets, np.int32)),
            Constant(np.array(self.weights, kind)),
            Constant(np.array(self.roots, np.int32)),
            num_targets,
            aggregate={"AVERAGE": "sum"}.get(aggregate, aggregate.lower()),
            modes=modes,
            missing=bool(table[:, NODE_FIELDS.index("missing_is_true")].any()),
        )
        return op.divide(result, Constant(np.array(len(self.roots), kind))) if aggregate == "AVERAGE" else result

    def _check(self, node: OnnxNode, table: np.ndarray, features: int, num_targets: int) -> None:
        """Check that all paths from the roots stay inside the tables and terminate."""
        inner, features = table[table[:, 0] != LEAF], min(features, MAX_FEATURES)
        if inner.size and (inner[:, 1].min() < 0 or inner[:, 1].max() >= features):
            raise node.error(f"trees that read features up to {inner[:, 1].max()}, of {features}")
        if self.targets and (min(self.targets) < 0 or max(self.targets) >= num_targets):
            raise node.error(f"leaves with targets up to {max(self.targets)}, of {num_targets}")
        state = np.zeros(len(table), np.int8)  # 1 on the way down, 2 done
        stack = [(root, False) for root in self.roots]
        while stack:
            at, done = stack.pop()
            if done:
                state[at] = 2
            elif not 0 <= at < len(table) or state[at] == 1:
                raise node.error("tree nodes that lead outside of the tree or in a circle")
            elif state[at] == 0:
                state[at] = 1
                stack.append((at, True))
                if table[at, 0] != LEAF:
                    stack.extend((int(child), False) for child in table[at, 2:4])
        if self.connected and (state == 0).any():
            raise node.error("tree nodes that form a circle, or that no root leads to")


def _data(node: OnnxNode) -> Expr:
    """The rows as float32 or float64."""
    if node.rank(0) != 2:
        raise node.error(f"data of rank {node.rank(0)}", expected="rows of features: rank 2")
    return node[0] if node.dtype(0) in ("float32", "float64") else op.cast(node[0], "float32")


@converter("TreeEnsemble", since=5, domain=DOMAIN)
def tree_ensemble(node: OnnxNode) -> Expr:
    """Decision trees with separate node and leaf tables."""
    node.attrs.ignore("nodes_hitrates")
    forest = _forest_5(node)
    aggregate = _AGGREGATES[_choice(node, "aggregate_function", 1, len(_AGGREGATES))]
    transform = POST_TRANSFORMS[_choice(node, "post_transform", 0, len(POST_TRANSFORMS))]
    scores = forest.scores(node, _data(node), node.attr_int("n_targets"), aggregate)
    return op.cast(post_transformed(node, scores, transform), str(node.dtype(0)))


def _choice(node: OnnxNode, name: str, default: int, count: int) -> int:
    value = node.attr_int(name, default)
    if not 0 <= value < count:
        raise node.error(f"{name} is {value}", expected=f"0 to {count - 1}")
    return value


def _tensor(node: OnnxNode, name: str) -> np.ndarray:
    value = node.attr_tensor(name)
    if value is None:
        raise node.error(f"the attribute {name!r} is missing")
    return value.reshape(-1)


def _forest_5(node: OnnxNode) -> _Forest:
    modes, splits = _tensor(node, "nodes_modes"), _tensor(node, "nodes_splits")
    features = node.attr_ints("nodes_featureids")
    missing = node.attr_ints("nodes_missing_value_tracks_true", ()) or (0,) * len(modes)
    sides = [
        (node.attr_ints(f"nodes_{side}nodeids"), node.attr_ints(f"nodes_{side}leafs")) for side in ("true", "false")
    ]
    targets, weights = node.attr_ints("leaf_targetids"), _tensor(node, "leaf_weights")
    members = _member_sets(node, int((modes == _MEMBER).sum()))
    lists = (splits, features, missing, *sides[0], *sides[1])
    if any(len(values) != len(modes) for values in lists) or len(targets) != len(weights):
        raise node.error("attributes of nodes or leaves of different lengths")
    forest = _Forest()
    leaves = [forest.leaf([(t, float(w))]) for t, w in zip(targets, weights, strict=True)]
    # A membership test becomes a chain of equality tests.
    chains: list[list[int]] = []
    for mode, feature, split, tracks in zip(modes, features, splits, missing, strict=True):
        values = next(members) if mode == _MEMBER else [float(split)]
        kind = _EQUAL if mode == _MEMBER else int(mode)
        chains.append([forest.branch(kind, feature, value, bool(tracks)) for value in values])

    def successor(side: int, number: int) -> int:
        ids, is_leaf = sides[side]
        table = leaves if is_leaf[number] else [chain[0] for chain in chains]
        if not 0 <= ids[number] < len(table):
            raise node.error(f"a successor {ids[number]} of node {number}")
        return table[ids[number]]

    for number, chain in enumerate(chains):
        for place, branch in enumerate(chain):
            forest.nodes[branch][2] = successor(0, number)
            forest.nodes[branch][3] = chain[place + 1] if place + 1 < len(chain) else successor(1, number)
    roots = node.attr_ints("tree_roots")
    if any(not 0 <= root < len(chains) for root in roots):
        raise node.error(f"roots {list(roots)} of {len(chains)} nodes")
    forest.roots.extend(chains[root][0] for root in roots)
    return forest


def _member_sets(node: OnnxNode, count: int) -> Iterator[list[float]]:
    """The sets of membership tests, each terminated by NaN in the attribute."""
    passed = node.attr_tensor("membership_values")
    values = np.zeros(0) if passed is None else passed.reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    sets = [part[~np.isnan(part)].tolist() for part in np.split(values, ends)][:-1] if len(ends) else []
    if len(sets) != count or any(not s for s in sets):
        raise node.error(f"{len(sets)} sets of membership values", expected=f"{count}, none empty")
    return iter(sets)


def _forest_of_ids(node: OnnxNode, weights: str) -> _Forest:
    """Trees whose nodes are identified by (tree id, node id); `weights` is "class" or "target"."""
    node.attrs.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    tree_ids, node_ids = node.attr_ints("nodes_treeids"), node.attr_ints("nodes_nodeids")
    owners = list(zip(tree_ids, node_ids, strict=False))
    modes = node.attrs.get_strings("nodes_modes") or ()
    splits = _numbers(node, "nodes_values")
    missing = node.attr_ints("nodes_missing_value_tracks_true", ()) or (0,) * len(owners)
    features, sides = node.attr_ints("nodes_featureids"), []
    for side in ("true", "false"):
        sides.append(node.attr_ints(f"nodes_{side}nodeids"))
    lists = (tree_ids, node_ids, modes, splits, missing, features, *sides)
    if any(len(values) != len(owners) for values in lists):
        raise node.error("attributes of nodes of different lengths")
    owned: dict[tuple[int, int], list[tuple[int, float]]] = {}
    trees, ids = node.attr_ints(f"{weights}_treeids"), node.attr_ints(f"{weights}_nodeids")
    targets, numbers_of = node.attr_ints(f"{weights}_ids"), _numbers(node, f"{weights}_weights")
    if not len(trees) == len(ids) == len(targets) == len(numbers_of):
        raise node.error(f"attributes {weights}_.. of different lengths")
    for owner, target, weight in zip(zip(trees, ids, strict=True), targets, numbers_of, strict=True):
        owned.setdefault(owner, []).append((target, float(weight)))
    forest, numbers = _Forest(connected=True), dict[tuple[int, int], int]()
    for owner, mode, feature, split, tracks in zip(owners, modes, features, splits, missing, strict=True):
        if mode == "LEAF":
            numbers[owner] = forest.leaf(owned.get(owner, []))
        elif mode in _MODES[:_MEMBER]:
            numbers[owner] = forest.branch(_MODES.index(mode), feature, float(split), bool(tracks))
        else:
            raise node.error(f"a node of mode {mode!r}", expected="LEAF or " + ", ".join(_MODES[:_MEMBER]))
    seen: set[int] = set()
    for (tree, _), owner, if_true, if_false in zip(owners, owners, *sides, strict=True):
        entry = forest.nodes[numbers[owner]]
        if entry[0] != LEAF:
            if (tree, if_true) not in numbers or (tree, if_false) not in numbers:
                raise node.error(f"node {owner[1]} of tree {tree} has successors {if_true} and {if_false}")
            entry[2:4] = numbers[tree, if_true], numbers[tree, if_false]
            seen.update(entry[2:4])
    forest.roots.extend(n for n in numbers.values() if n not in seen)
    return forest


def _numbers(node: OnnxNode, name: str) -> Sequence[float]:
    """Floats of an attribute, or of its tensor variant in another precision."""
    tensor = node.attr_tensor(f"{name}_as_tensor")
    if tensor is not None:
        return [float(v) for v in tensor.reshape(-1)]
    return node.attrs.get_floats(name) or ()


def _with_base(node: OnnxNode, scores: Expr, count: int) -> Expr:
    base = _numbers(node, "base_values")
    if not base:
        return scores
    if len(base) not in (1, count):
        raise node.error(f"{len(base)} base values for {count} targets")
    return op.add(scores, Constant(np.array(base, str(scores.dtype))))


@converter("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(node: OnnxNode) -> Expr:
    aggregate = node.attr_choice("aggregate_function", _AGGREGATES, "SUM")
    transform = node.attr_choice("post_transform", POST_TRANSFORMS, "NONE")
    count, forest = node.attr_int("n_targets"), _forest_of_ids(node, "target")
    if count == 1:  # as in onnxruntime, on which skl2onnx's numbers of leaves rely, weights after the first don't count
        for entry in forest.nodes:
            if entry[0] == LEAF:
                entry[_AFTER_WEIGHT] = min(entry[_AFTER_WEIGHT], entry[_FIRST_WEIGHT] + 1)
    scores = forest.scores(node, _data(node), count, aggregate)
    return op.cast(post_transformed(node, _with_base(node, scores, count), transform), "float32")


@converter("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(node: OnnxNode) -> list[Expr]:
    """Label of the highest score, and all scores. Two classes may share a single score."""
    labels = class_labels(node, "classlabels_int64s")
    transform = node.attr_choice("post_transform", POST_TRANSFORMS, "NONE")
    forest = _forest_of_ids(node, "class")
    one = len(set(forest.targets)) == 1 and len(labels) <= 2
    if one:
        forest.targets[:] = [0] * len(forest.targets)
    count = 1 if one else len(labels)
    total = _with_base(node, forest.scores(node, _data(node), count, "SUM"), count)
    return labelled(node, op.cast(total, "float32"), labels, transform, one, min(forest.weights, default=0.0) >= 0)
