"""Engines that run the decoder of `benchmarks.llm_models`, each in a process of its own, driven over pipes.

    python -m benchmarks.llm_engines ENGINE KIND FOLDER

reads commands, a line each: ``prefill BATCH POSITIONS`` and ``decode BATCH CONTEXT STEPS`` measure and answer with the
CPU seconds of the process, or with those of the clock where RELAYC_NUM_THREADS is more than one; ``tokens CONTEXT STEPS
FILE.npz`` stores greedy tokens and the last logits, ``memory`` answers with the peak of resident memory. FOLDER has the
models, which are made if they are not there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.engines import ROOT, onnxruntime_session, peak_megabytes
from benchmarks.llm_models import LLAMA, write_gguf, write_onnx

__all__ = ["ENGINES", "ROOT", "compile_relayc", "runs"]

Array = npt.NDArray[Any]
THREADS = int(os.environ.get("RELAYC_NUM_THREADS", "1"))
_clock = time.process_time if THREADS == 1 else time.perf_counter
_CACHE_SHAPE = (LLAMA.groups, LLAMA.positions, LLAMA.head_size)


class Session(Protocol):
    """A decoder that an engine runs."""

    def begin(self, tokens: Array) -> Array:
        """Forget all positions, and give the logits (batch, vocabulary) behind a prompt (batch, positions)."""
        ...

    def step(self, tokens: Array) -> Array:
        """The logits behind one more token of each row (batch, 1)."""
        ...


def compile_relayc(kind: str, folder: Path) -> Path:
    """Compile the "standard" form of a model, with caches that the executor keeps."""
    from relayc import compile_onnx

    artifact = folder / f"{kind}.relayc"
    if not artifact.exists():
        weights = "float32" if kind == "bfloat16" else kind
        model = write_onnx(folder / f"{weights}_standard", LLAMA, weights, grouped=False)
        config = {"relay.ToMixedPrecision.dtype": "bfloat16"} if kind == "bfloat16" else {}
        compile_onnx(model, caches="auto", config=config).save(str(artifact))
    return artifact


class _Relayc:
    """An artifact that `compile_relayc` made."""

    def __init__(self, kind: str, folder: Path) -> None:
        from relayc.runtime import device, graph_executor, load_model

        factory = load_model(str(folder / f"{kind}.relayc"), huge_pages=True)["default"]
        self._module = graph_executor.GraphModule(factory(device("cpu", 0)), num_threads=THREADS)

    def begin(self, tokens: Array) -> Array:
        self._module.truncate_caches(0)
        return self.step(tokens)

    def step(self, tokens: Array) -> Array:
        past = self._module.cache_length
        positions = np.arange(past, past + tokens.shape[1])
        feed = {"input_ids": tokens, "position_ids": np.tile(positions, (len(tokens), 1))}
        return self._module.infer(feed, ("logits",))[0][:, 0]


class _Onnxruntime:
    """The "grouped" form; inputs and outputs of the caches are bound to the same buffers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._session = onnxruntime_session(write_onnx(folder / kind, LLAMA, kind), THREADS)
        self._caches: dict[str, Any] = {}
        self._length = self._batch = 0

    def begin(self, tokens: Array) -> Array:
        import onnxruntime

        if len(tokens) != self._batch:
            self._batch, shape = len(tokens), (len(tokens), *_CACHE_SHAPE)
            for name in [x.name for x in self._session.get_inputs() if x.name.startswith("past")]:
                zeros = np.zeros(shape, np.float32)  # each its own: it becomes the buffer
                self._caches[name] = onnxruntime.OrtValue.ortvalue_from_numpy(zeros)
        self._length = 0
        return self.step(tokens)

    def step(self, tokens: Array) -> Array:
        self._length += tokens.shape[1]
        binding = self._session.io_binding()
        binding.bind_output("logits")
        mask = np.ones((len(tokens), self._length), np.int64)
        for name, value in (("input_ids", tokens), ("attention_mask", mask)):  # which are read in place
            binding.bind_cpu_input(name, value)
        for name, cache in self._caches.items():
            binding.bind_ortvalue_input(name, cache)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
        self._session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()[:, 0]


class _Genai:
    """onnxruntime-genai, with the files of onnxruntime."""

    def __init__(self, kind: str, folder: Path) -> None:
        import onnxruntime_genai  # pyright: ignore[reportMissingImports]: optional

        self._library: Any = onnxruntime_genai
        config = self._library.Config(str(write_onnx(folder / kind, LLAMA, kind).parent))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": THREADS}}}}))
        self._model = self._library.Model(config)
        self._generator: Any = None

    def begin(self, tokens: Array) -> Array:
        self._generator = None  # its caches are freed before the next ones are made
        params = self._library.GeneratorParams(self._model)
        params.set_search_options(batch_size=len(tokens), max_length=LLAMA.positions)
        self._generator = self._library.Generator(self._model, params)
        self._generator.append_tokens(tokens.astype(np.int32))
        return self._generator.get_logits()[:, -1]

    def step(self, tokens: Array) -> Array:
        self._generator.generate_next_token()  # appends the likeliest, which `tokens` are: batches can't be given any
        return self._generator.get_logits()[:, -1]


class _OpenVINO:
    """Caches are state; int8 weights are dequantised ones, whose data the plugin quantises."""

    def __init__(self, kind: str, folder: Path) -> None:
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        self._library: Any = openvino
        weights = "float32" if kind == "bfloat16" else kind
        name = folder / f"{weights}{'_weights' if kind == 'int8' else ''}_standard"
        path = write_onnx(name, LLAMA, weights, grouped=False, weights_only=True)
        core = openvino.Core()
        model = core.read_model(path)
        names = [x.any_name for x in model.inputs if x.any_name.startswith("past")]
        apply_make_stateful_transformation(model, {n: n.replace("past_key_values", "present") for n in names})
        precision = "bf16" if kind == "bfloat16" else "f32"
        settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
                    "INFERENCE_PRECISION_HINT": precision}  # fmt: skip
        self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        self._length = 0

    def begin(self, tokens: Array) -> Array:
        self._request.reset_state()
        groups, _, size = _CACHE_SHAPE
        for state in self._request.query_state():
            state.state = self._library.Tensor(np.zeros((len(tokens), groups, 0, size), np.float32))
        self._length = 0
        return self.step(tokens)

    def step(self, tokens: Array) -> Array:
        positions = np.arange(self._length, self._length + tokens.shape[1])
        self._length += tokens.shape[1]
        feed = {"input_ids": tokens, "position_ids": np.tile(positions, (len(tokens), 1))}
        return self._request.infer(feed)[0][:, 0]


class _LlamaCpp:
    """llama.cpp by its C interface, with the type of weights nearest to the format."""

    def __init__(self, kind: str, folder: Path) -> None:
        import llama_cpp  # pyright: ignore[reportMissingImports]: optional

        self._library: Any = llama_cpp
        path = write_gguf(folder / f"{kind}.gguf", LLAMA, kind)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        self._context, self._batch, self._length = None, 0, 0

    def begin(self, tokens: Array) -> Array:
        library = self._library
        if len(tokens) != self._batch:
            if self._context is not None:
                library.llama_free(self._context)
            params = library.llama_context_default_params()
            params.n_ctx, params.n_batch = LLAMA.positions * len(tokens), LLAMA.positions * len(tokens)
            params.n_seq_max, params.n_threads, params.n_threads_batch = len(tokens), THREADS, THREADS
            self._context, self._batch = library.llama_init_from_model(self._model, params), len(tokens)
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        self._length = 0
        return self.step(tokens)

    def step(self, tokens: Array) -> Array:
        library, (rows, count) = self._library, tokens.shape
        batch = library.llama_batch_init(rows * count, 0, 1)
        batch.n_tokens = rows * count
        for at, (row, position) in enumerate(np.ndindex(rows, count)):
            batch.token[at], batch.pos[at] = int(tokens[row, position]), self._length + position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
            batch.logits[at] = position == count - 1
        self._length += count
        if library.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        last = [library.llama_get_logits_ith(self._context, (row + 1) * count - 1) for row in range(rows)]
        logits = np.stack([np.ctypeslib.as_array(x, (LLAMA.tokens,)).copy() for x in last])
        library.llama_batch_free(batch)
        return logits


ENGINES: dict[str, Callable[[str, Path], Session]] = {
    "relayc": _Relayc,
    "onnxruntime": _Onnxruntime,
    "genai": _Genai,
    "openvino": _OpenVINO,
    "llama_cpp": _LlamaCpp,
}


def runs(engine: str, kind: str) -> bool:
    """Whether an engine has a format at all: onnxruntime has no products of bfloat16 on x86-64."""
    return not (kind == "bfloat16" and engine in ("onnxruntime", "genai"))


def _prompt(batch: int, count: int) -> Array:
    return np.random.default_rng(count).integers(3, LLAMA.tokens, (batch, count))


def _greedy(logits: Array) -> Array:
    return logits.argmax(axis=-1).reshape(-1, 1)


def _prefill(session: Session, batch: int, count: int) -> float:
    tokens = _prompt(batch, count)
    begin = _clock()
    session.begin(tokens)
    return _clock() - begin


def _decode(session: Session, batch: int, context: int, steps: int) -> float:
    """Seconds of a step, the mean; the first is not measured."""
    logits = session.step(_greedy(session.begin(_prompt(batch, context))))
    begin = _clock()
    for _ in range(steps):
        logits = session.step(_greedy(logits))
    return (_clock() - begin) / steps


def _tokens(session: Session, context: int, steps: int, file: str) -> None:
    """Store the greedy tokens behind a prompt, and the logits behind the prompt."""
    first = logits = session.begin(_prompt(1, context)).copy()
    found: list[int] = []
    for _ in range(steps):
        found.append(int(logits.argmax()))
        logits = session.step(_greedy(logits))
    np.savez(file, tokens=np.array(found), logits=first)


def _serve(engine: str, kind: str, folder: Path) -> None:
    session = ENGINES[engine](kind, folder)
    print("{}", flush=True)
    before = ""
    for line in sys.stdin:
        command, *arguments = line.split()
        if command in ("prefill", "decode") and arguments[0] != before:
            before = arguments[0]
            session.begin(_prompt(int(before), 1))  # makes the caches of another batch, which is not measured
        answer: dict[str, float] = {}
        if command == "prefill":
            answer["seconds"] = _prefill(session, *map(int, arguments))
        elif command == "decode":
            answer["seconds"] = _decode(session, *map(int, arguments))
        elif command == "tokens":
            _tokens(session, int(arguments[0]), int(arguments[1]), arguments[2])
        elif command == "memory":
            answer["peak"] = peak_megabytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_relayc(sys.argv[2], Path(sys.argv[3]))
    else:
        _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
