"""Models of language: the files of a folder, their compilation, and what the folder says about generation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import relayc
from relayc.backend.runtime.container import is_container
from relayc.generation.errors import GenerationError
from relayc.generation.options import GenerationOptions, options_from
from relayc.runtime import CompiledModel, GraphModule, load_model

__all__ = ["ModelFolder", "make_executor"]

_DECODERS = ("decoder_model_merged", "decoder_with_past_model", "decoder_model", "decoder", "model")
_ENCODERS = ("encoder_model", "encoder")
_SUFFIXES = (".relayc", ".onnx")

_LENGTHS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
"""Names of the longest sequence in config.json."""


@dataclass
class ModelFolder:
    """The files of a model, and settings beside them.

    `prefill` is the decoder of the first step, where it is another one; `names` and `caches` are names of the decoder's
    inputs and outputs that genai_config.json gives.
    """

    folder: Path | None
    decoder: Any
    prefill: Any = None
    encoder: Any = None
    names: dict[str, str] = field(default_factory=dict[str, str])
    caches: dict[str, str] = field(default_factory=dict[str, str])
    defaults: GenerationOptions = field(default_factory=GenerationOptions)
    context_length: int | None = None
    decoder_start: int | None = None
    vocabulary: int | None = None

    @staticmethod
    def open(model: Any) -> ModelFolder:
        """The folder of a model, a file in it, or a model in memory. Raises `GenerationError` for a folder without."""
        if not isinstance(model, str | os.PathLike):
            return ModelFolder(None, model)
        path = Path(model)
        if path.is_file():
            found = ModelFolder(path.parent, path)
        elif path.is_dir():
            found = ModelFolder(path, None)
            found._find_files()
        else:
            raise GenerationError(f"{path}: no such file or folder; expected a model or the folder of one")
        found._read_settings()
        return found

    def _find_files(self) -> None:
        assert self.folder is not None
        file = self.folder / "genai_config.json"
        model = _section(file, _json(file), "model")
        if model:
            self.decoder = self._named(_section(file, model, "decoder").get("filename"))
            encoder = _section(file, model, "encoder")
            self.encoder = self._named(encoder.get("filename")) if encoder else None
            return
        for folder in (self.folder, self.folder / "onnx"):
            files = {stem: path for stem in (*_DECODERS, *_ENCODERS) if (path := _file(folder / stem)) is not None}
            self.encoder = next((files[stem] for stem in _ENCODERS if stem in files), None)
            self.decoder = next((files[stem] for stem in _DECODERS if stem in files), None)
            if self.decoder is not None and self.decoder.stem == "decoder_with_past_model":
                self.prefill = files.get("decoder_model")
            if self.decoder is None:
                others = [path for suffix in _SUFFIXES for path in sorted(folder.glob(f"*{suffix}"))]
                self.decoder = others[0] if len({path.stem for path in others}) == 1 else None
            if self.decoder is not None:
                return
        held = ", ".join(sorted(path.name for path in self.folder.iterdir())) or "nothing"
        raise GenerationError(
            f"{self.folder} holds {held}; expected genai_config.json, or one of {', '.join(_DECODERS)} with "
            f"{' or '.join(_SUFFIXES)}, or one such file alone"
        )

    def _named(self, name: Any) -> Path:
        """A file that genai_config.json names; an artifact of that stem comes first."""
        assert self.folder is not None
        found = _file(self.folder / Path(str(name)).stem)
        if found is None:
            raise GenerationError(f"{self.folder / 'genai_config.json'} names {name}, which is not there")
        return found

    def _read_settings(self) -> None:
        assert self.folder is not None
        file = self.folder / "genai_config.json"
        genai = _json(file)
        general, config = _json(self.folder / "generation_config.json"), _json(self.folder / "config.json")
        if not general and not config and not genai and self.folder.name == "onnx":
            self.folder = self.folder.parent
            general, config = _json(self.folder / "generation_config.json"), _json(self.folder / "config.json")
        model = _section(file, genai, "model")
        merged = {**config, **model, **_section(file, genai, "search"), **general}
        self.defaults = options_from(GenerationOptions(), {"do_sample": False, **_options(merged)})
        lengths = [model.get("context_length"), *[config.get(name) for name in _LENGTHS]]
        self.context_length = next((n for n in lengths if isinstance(n, int) and n > 0), None)
        sizes = (model.get("vocab_size"), config.get("vocab_size"))
        self.vocabulary = next((n for n in sizes if isinstance(n, int)), None)
        starts = (general.get("decoder_start_token_id"), config.get("decoder_start_token_id"))
        self.decoder_start = next((n for n in starts if isinstance(n, int)), None)
        self._read_names(file, _section(file, model, "decoder"))

    def _read_names(self, file: Path, decoder: Mapping[str, Any]) -> None:
        """The names of inputs and outputs that genai_config.json gives."""
        inputs, outputs = _section(file, decoder, "inputs"), _section(file, decoder, "outputs")
        for name in (*inputs.values(), *outputs.values()):
            if not isinstance(name, str):
                raise GenerationError(f"{file}: {name!r:.80} in the place of a name of an input or output")
        roles = {**inputs, "logits": outputs.get("logits", "logits")} if inputs else {}
        self.names = {role: name for role, name in roles.items() if "%d" not in name and role in _GENAI_ROLES}
        for kind in ("key", "value", "conv", "recurrent"):
            past, present = inputs.get(f"past_{kind}_names"), outputs.get(f"present_{kind}_names")
            if past and present:
                count = decoder.get("num_hidden_layers", 0)
                if not (isinstance(count, int) and 0 <= count <= _MOST_LAYERS):
                    raise GenerationError(f"{file}: num_hidden_layers is {count!r:.80}; expected 0 to {_MOST_LAYERS}")
                layers = range(count)
                self.caches.update({past.replace("%d", str(i)): present.replace("%d", str(i)) for i in layers})


_MOST_LAYERS = 10_000

_GENAI_ROLES = ("input_ids", "attention_mask", "position_ids", "encoder_hidden_states", "logits")
"""Roles that have the same name in genai_config.json."""


def make_executor(model: Any, target: str, num_threads: int | None, decodes: bool, **options: Any) -> GraphModule:
    """An executor of a model: an artifact, a compiled model, or an ONNX model, which is compiled for `target`.

    With `decodes`, the executor keeps the caches that it can, logits are those of the last position, and
    weights are in huge pages, as each token reads all of them.
    `options` are others of `compile_onnx`.
    """
    if isinstance(model, GraphModule):
        return model
    is_path = isinstance(model, str | os.PathLike)
    if is_path and not Path(model).is_file():
        raise GenerationError(f"{str(model)!r}: no such file; expected an artifact or an ONNX model")
    if isinstance(model, CompiledModel) or (is_path and is_container(model)):
        compiled = model if isinstance(model, CompiledModel) else load_model(str(model), huge_pages=decodes)
    else:
        if decodes:
            options = {"caches": "auto", "last_position": "auto", **options}
        compiled = relayc.compile_onnx(model, target, huge_pages=decodes, **options)
    return GraphModule.of(compiled, num_threads=num_threads)


def _file(stem: Path) -> Path | None:
    """The artifact or else the ONNX model of this name without suffix."""
    found = [path for suffix in _SUFFIXES if (path := stem.with_name(stem.name + suffix)).is_file()]
    return found[0] if found else None


def _json(path: Path) -> dict[str, Any]:
    """The settings in a file; none without it."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise GenerationError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise GenerationError(f"{path} holds a {type(found).__name__}; expected settings by name")
    return found


def _section(path: Path, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of the file under a name; none without it."""
    found = settings.get(name) or {}
    if not isinstance(found, dict):
        raise GenerationError(f"{path}: {name!r} is {found!r:.80}; expected settings by name")
    return found


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a generation among settings; others, and those that are not set, are left out."""
    known = GenerationOptions.__dataclass_fields__
    return {name: value for name, value in settings.items() if name in known and value is not None}
