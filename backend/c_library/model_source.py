"""The C sources of a model's library: the header, the code around the compiled kernels, and an example."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from relayc.backend.c.compiler import checked_features
from relayc.backend.c_library.graph_source import GraphSource, passed_inputs
from relayc.backend.c_library.naming import comment, enumerators, quoted
from relayc.backend.c_library.weights import WeightLayout
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.execution_plan import Check
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.sizes import Size, size_text, variables

__all__ = ["ModelSource"]

_INCLUDES = ("errno.h", "fcntl.h", "inttypes.h", "pthread.h", "sched.h", "stdarg.h", "stdatomic.h", "stdint.h",
             "stdio.h", "stdlib.h", "string.h", "sys/mman.h", "sys/stat.h", "sys/syscall.h", "unistd.h")  # fmt: skip
_C_TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t, 0 or 1", "int4": "int8_t, one element each",
            "uint4": "uint8_t, one element each", "float16": "uint16_t, its bits", "bfloat16": "uint16_t, its bits",
            "complex64": "float, two each", "complex128": "double, two each"}  # fmt: skip
_AMX_PERMISSION = """  if (syscall(SYS_arch_prctl, 0x1023, 18)) /* permission to use AMX's tiles (Linux: xstate.rst) */
    return fail(MODEL_UNSUPPORTED_CPU, "this system has no AMX, which the code uses");"""


@dataclass(frozen=True)
class ModelSource:
    """The sources of the library `name` of a model: `graph`, whose weights lie as `layout` says, for processors with
    `features`. `weights_file` is the name of the file of weights, None if they are in the library.

    Raises `ModuleError`, which names the node, for a graph that only the executor can run.
    """

    name: str
    graph: Graph
    layout: WeightLayout
    features: Sequence[str]
    weights_file: str | None

    def __post_init__(self) -> None:
        for _, variant in self.graph.variants:
            self._check_ranks(variant)

    def header(self) -> str:
        """The text of ``<name>.h``."""
        ins, outs = self._inputs, self._outputs
        prefix = self.name.upper()
        argument = "NULL: they are in the library"
        if self.weights_file is not None:
            argument = f'the path of the file\n * "{comment(self.weights_file)}", which has to stay as it is'
        return self._text(
            "model.h",
            {
                "title": comment(self.graph.name),
                "facts": f" * Compiled for the target {comment(self.graph.target)}.",
                "inputs": "\n".join([_described(t, [t.shape]) for t in ins]),
                "outputs": "\n".join([_described(t, self._shapes(i)) + self._columns(i) for i, t in enumerate(outs)]),
                "input_names": _enum(f"{prefix}_INPUT_", ins),
                "output_names": _enum(f"{prefix}_OUTPUT_", outs),
                "max_rank": str(self._max_rank),
                "weights_argument": argument,
                "caches": self._renamed(_template("caches.h")) if self.graph.caches else "",
            },
        )

    def code(self) -> str:
        """The text of ``<name>.c``, which includes the header."""
        parts = [
            "#define _GNU_SOURCE",
            *[f"#include <{header}>" for header in _INCLUDES],
            f'#include "{self.name}.h"',
            "",
            _template("support.c"),
            *self._caches(),
            *self._infos("input", self._inputs),
            *self._infos("output", self._outputs),
            "",
            *self._processor_check(),
            "",
            *self._weights(),
            *self._graphs(),
            *self._context(),
            _template("interface.c"),
            *([_template("caches_interface.c")] if self.graph.caches else []),
        ]  # fmt: skip
        return self._renamed("\n".join(parts))

    def example(self) -> str:
        """The text of ``main.c``: a program that runs the model once."""
        weights = "NULL" if self.weights_file is None else quoted(self.weights_file)
        return self._text("example.c", {"weights": weights})

    def cmake(self) -> str:
        """The text of ``CMakeLists.txt``."""
        return self._text("CMakeLists.txt", {})

    # -- the parts

    @property
    def _inputs(self) -> list[GraphTensor]:
        return passed_inputs(self.graph)

    @property
    def _outputs(self) -> list[GraphTensor]:
        return [self.graph.tensors[i] for i in self.graph.outputs]

    @property
    def _max_rank(self) -> int:
        return max([1, *[len(self.graph.tensors[i].shape) for i in (*self.graph.inputs, *self.graph.outputs)]])

    def _columns(self, position: int) -> str:
        keys = self.graph.maps.get(position)
        return "" if keys is None else f", columns: {comment(', '.join(map(repr, keys)))}"

    def _text(self, file: str, values: Mapping[str, str]) -> str:
        """A file of this package with its `values` filled in, and the model's name for "model"."""
        return _filled(self._renamed(_template(file)), {"name": self.name, **values})

    def _renamed(self, code: str) -> str:
        """`code` with the library's name for the prefixes "model" and "MODEL" of the names in the header; strings stay
        as they are."""
        prefixes = {"model": self.name, "MODEL": self.name.upper()}

        def replaced(match: re.Match[str]) -> str:
            return match[0] if match[1] is None else prefixes[match[1]]

        return re.sub(r'"(?:\\.|[^"\\\n])*"|\b(model|MODEL)(?=_)', replaced, code)

    def _weights(self) -> list[str]:
        """The functions that open the weights."""
        if self.weights_file is None:
            return [_template("weights_in_library.c")]
        digest = ", ".join([str(byte) for byte in self.layout.digest])
        return [_filled(_template("weights_in_file.c"), {"digest": digest, "nbytes": str(self.layout.nbytes)})]

    def _caches(self) -> list[str]:
        """The functions that keep KV caches, for a model that has any."""
        if not self.graph.caches:
            return []
        infos: list[str] = []
        for cache in self.graph.caches:
            tensor = self.graph.tensors[self.graph.inputs[cache.position]]
            infos.append(
                f"  {{{quoted(tensor.name)}, {len(tensor.shape)}, {cache.axis}, {nbytes(tensor.dtype, 1)}}},"
            )
        count = f"enum {{ CACHE_COUNT = {len(infos)} }};"
        return [count, "", _filled(_template("caches.c"), {"infos": "\n".join(infos)})]

    def _infos(self, kind: str, tensors: Iterable[GraphTensor]) -> list[str]:
        rows = [
            f"  {{{quoted(t.name)}, {quoted(t.dtype)}, {nbytes(t.dtype, 1)}, {len(t.shape)}, "
            f"{{{', '.join(self._fixed(kind, position, t)) or '0'}}}}},"
            for position, t in enumerate(tensors)
        ]
        return [f"static const model_tensor_info {kind}_infos[] = {{", *(rows or ["  {0},"]), "};"]

    def _shapes(self, position: int) -> list[Sequence[Size]]:
        """The shapes of an output, in the graph and in its specialisations."""
        graphs = [self.graph, *[variant for _, variant in self.graph.variants]]
        return [graph.tensors[graph.outputs[position]].shape for graph in graphs]

    def _fixed(self, kind: str, position: int, tensor: GraphTensor) -> Iterator[str]:
        """The sizes of an input or output, -1 for those that differ between runs."""
        for sizes in zip(*(self._shapes(position) if kind == "output" else [tensor.shape]), strict=True):
            yield str(sizes[0]) if isinstance(sizes[0], int) and len(set(sizes)) == 1 else "-1"

    def _processor_check(self) -> list[str]:
        lines = ["static int check_processor(void) {"]
        for guard, tests in checked_features(self.features):
            lines += [f"#if {guard}"] if guard else []
            lines += [
                f'  if (!__builtin_cpu_supports("{f}"))\n    return fail(MODEL_UNSUPPORTED_CPU, '
                f'"this processor lacks {f}, which the code uses");'
                for f in tests
            ]
            lines += ["#endif"] if guard else []
        if any(feature.startswith("amx") for feature in self.features):
            lines.append(_AMX_PERMISSION)
        return [*lines, "  return MODEL_OK;", "}"]

    @cached_property
    def _sources(self) -> list[GraphSource]:
        """The code of the graph, and of its specialisations."""
        variants = [variant for _, variant in self.graph.variants]
        open_sizes = frozenset().union(*[self._open_sizes(variant) for variant in variants])
        graphs = enumerate([self.graph, *variants])
        return [GraphSource(graph, k, self.layout.offsets, open_sizes) for k, graph in graphs]

    def _check_ranks(self, variant: Graph) -> None:
        """Raise `ModuleError` for a specialisation that takes or gives tensors of other ranks."""
        for kind in ("inputs", "outputs"):
            expected, found = [[len(g.tensors[i].shape) for i in getattr(g, kind)] for g in (self.graph, variant)]
            if found != expected:
                raise ModuleError(
                    f"model {self.graph.name!r} has a specialisation for {kind} of other ranks, {found} instead of "
                    f"{expected}; compile it without specialize=, and without branches that give other ranks"
                )

    def _open_sizes(self, variant: Graph) -> frozenset[tuple[int, int]]:
        """The (output, axis) of the sizes that only a run can tell: those which differ in a specialisation that values
        select, not shapes."""
        known = variant.input_sizes
        checks = [step for step in variant.steps if isinstance(step, Check)]
        if all(known.issuperset(variables(side)) for check in checks for side in (check.left, check.right)):
            return frozenset()
        shapes = [[g.tensors[i].shape for i in g.outputs] for g in (self.graph, variant)]
        return frozenset(
            (position, axis)
            for position, pair in enumerate(zip(*shapes, strict=True))
            for axis, (one, other) in enumerate(zip(*pair, strict=True))
            if one != other
        )

    def _graphs(self) -> list[str]:
        lines: list[str] = []
        for source in self._sources:
            lines += [*source.declarations(), *source.struct(), *source.functions(), ""]
        return lines

    def _context(self) -> list[str]:
        """The struct of the context, and the functions that choose the graph for inputs."""
        count = len(self._sources)
        lines = ["struct model_context {", "  struct run run;"]
        lines += [*[f"  struct graph_{k} graph_{k};" for k in range(count)], "};", ""]
        for name, kind in (("begin", "int"), ("end", "void")):
            lines.append(f"static {kind} {name}(model_context *context) {{")
            for k, source in enumerate(self._sources):
                place = f"context->graph_{k}"
                body = source.begin(place, "context->run.weights->start") if name == "begin" else source.end(place)
                lines += [f"  {line}" for line in body]
            lines += ["  (void)context;", *(["  return MODEL_OK;"] if name == "begin" else []), "}", ""]
        lines += self._chosen("static int find_shapes(const model_tensor *inputs, model_tensor *outputs)", "shapes", "")
        header = "static int run_model(model_context *context, const model_tensor *inputs, model_tensor *outputs)"
        return [*lines, *self._chosen(header, "run", "&context->run, &context->graph_{}, ")]

    def _chosen(self, header: str, function: str, arguments: str) -> list[str]:
        """A function that calls that of the first specialisation that takes the inputs, or of the graph."""
        names = {name: f"s[{i}]" for i, name in enumerate(self.graph.sizes)}
        lines = [f"{header} {{"]
        if self.graph.variants:
            lines.append("  int status;")
        if any(sizes for sizes, _ in self.graph.variants):
            lines.append(f"  int64_t s[{max(len(names), 1)}];")
            lines.append("  int is_taken = bind_0(inputs, s) == MODEL_OK;")
        for k, (sizes, _) in enumerate(self.graph.variants, start=1):
            tests = " && ".join(["is_taken", *[f"{names[name]} == {size}" for name, size in sizes.items()]])
            call = f"{function}_{k}({arguments.format(k)}inputs, outputs)"
            lines.append(f"  if ({tests if sizes else '1'}) {{")
            lines.append(f"    if ((status = {call}) != MODEL_SIZE_MISMATCH) return status;")
            lines.append("  }")
        return [*lines, f"  return {function}_0({arguments.format(0)}inputs, outputs);", "}", ""]


def _template(file: str) -> str:
    """The text of a file of this package."""
    return files("relayc.backend.c_library").joinpath(file).read_text(encoding="utf-8")


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Text with `values` for the names in it that stand between two "@"."""
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def _described(tensor: GraphTensor, shapes: Sequence[Sequence[Size]]) -> str:
    """A line about an input or output, which has one of `shapes`, for the header."""
    sizes = [dict.fromkeys(map(size_text, each)) for each in zip(*shapes, strict=True)]
    shape = ", ".join([comment(" or ".join(each)) for each in sizes])
    kind = _C_TYPES.get(tensor.dtype, f"{tensor.dtype}_t" if "int" in tensor.dtype else f"{tensor.dtype}, its bits")
    return f' *   "{comment(tensor.name)}": {tensor.dtype}[{shape}] ({kind})'


def _enum(prefix: str, tensors: Sequence[GraphTensor]) -> str:
    words = enumerators(prefix, [tensor.name for tensor in tensors])
    return ", ".join([f"{word} = {i}" for i, word in enumerate([*words, f"{prefix}COUNT"])])


