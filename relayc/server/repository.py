"""The models of a server, by name and version, and where they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from relayc.server.errors import ServerError
from relayc.server.metrics import Metrics, ModelMetrics
from relayc.server.runners import ModelRunner
from relayc.server.scheduler import ModelOptions, Scheduler

__all__ = ["ModelFile", "Repository", "ServedModel", "find_models"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
_VERSION = re.compile(r"[1-9]\d{0,17}")
_FILES = ("model.relayc", "model.onnx")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model to serve: its name, its version, and the file that it is in."""

    name: str
    version: int
    path: Path


def find_models(arguments: Iterable[str]) -> list[ModelFile]:
    """The models that a command line names: files, NAME=FILE, and folders with NAME/VERSION/model.relayc in them.

    A file is version 1 of the model with its name. In a folder, a file model.onnx will do, too. Raises ServerError for
    names without models, for names that no URL can have, and for two models of one name and version.
    """
    found: list[ModelFile] = []
    for argument in arguments:
        name, separator, file = argument.partition("=")
        path = Path(file if separator else argument)
        if path.is_dir() and not separator:
            found += _in_folder(path)
        elif path.is_file():
            found.append(ModelFile(name if separator else path.stem, 1, path))
        else:
            raise ServerError(f"{path} is no file; expected a model, NAME=FILE, or a folder of models")
    for model in found:
        if not _NAME.fullmatch(model.name):
            raise ServerError(
                f"{model.name!r}, the name of {model.path}: expected letters, digits, '_', '-' and '.'; say NAME=FILE"
            )
    return found


def _in_folder(folder: Path) -> Iterator[ModelFile]:
    versions = [
        (name, version)
        for name in sorted(folder.iterdir())
        if name.is_dir() and not name.name.startswith(".")
        for version in sorted(name.iterdir())
        if version.is_dir() and _VERSION.fullmatch(version.name)
    ]
    if not versions:
        raise ServerError(f"no model in {folder}; expected NAME/VERSION/{_FILES[0]}, the version a number from 1")
    for name, version in versions:
        path = next((version / file for file in _FILES if (version / file).is_file()), None)
        if path is None:
            raise ServerError(f"no model in {version}; expected {' or '.join(_FILES)}")
        yield ModelFile(name.name, int(version.name), path)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One version of a model, its queue and its metrics. `batch_obstacle` says why its requests are not joined."""

    name: str
    version: int
    runner: ModelRunner
    scheduler: Scheduler
    metrics: ModelMetrics
    batch_obstacle: str | None

    def metadata(self, versions: Iterable[int]) -> dict[str, Any]:
        """The model's metadata by the protocol; `versions` are all that there are of it."""
        return {
            "name": self.name,
            "versions": [str(version) for version in versions],
            "platform": self.runner.platform,
            "inputs": [spec.to_json() for spec in self.runner.inputs],
            "outputs": [spec.to_json() for spec in self.runner.outputs],
        }


class Repository:
    """The served models. Add them before the server starts; each has threads of its own from then on."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._models: dict[str, dict[int, ServedModel]] = {}

    def add(self, name: str, runner: ModelRunner, version: int = 1, options: ModelOptions | None = None) -> ServedModel:
        """Serve a model. Requests that name no version get the highest one.

        Raises ServerError for a name that is taken or that no URL can have, and for inputs that the protocol can't
        pass.
        """
        if not _NAME.fullmatch(name) or version < 1:
            raise ServerError(
                f"model {name!r}, version {version}: expected a name of letters and digits, a version > 0"
            )
        versions = self._models.setdefault(name, {})
        if version in versions:
            raise ServerError(f"there are two models {name!r} of version {version}; rename one: NAME=FILE")
        if not runner.inputs or not runner.outputs:
            raise ServerError(f"model {name!r} has no inputs or no outputs; the protocol needs both")
        options = ModelOptions() if options is None else options
        obstacle = runner.batch_obstacle if options.max_batch_size > 1 else None
        if obstacle is not None:
            options = ModelOptions(options.instances, options.queue)
        waiting: Callable[[], int] = lambda: len(scheduler)  # noqa: E731 - the queue and its metrics know each other
        metrics = self.metrics.model(name, version, waiting)
        scheduler = Scheduler(name, runner, options, metrics)
        versions[version] = ServedModel(name, version, runner, scheduler, metrics, obstacle)
        return versions[version]

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """The model of that name and version, by default the highest. Raises ServerError, 404, if there is none."""
        versions = self.versions(name)
        number = max(versions) if version is None else int(version) if _VERSION.fullmatch(version) else 0
        if number not in versions:
            known = ", ".join(map(str, sorted(versions)))
            raise ServerError(f"model {name!r} has no version {version!r:.40}; it has {known}", HTTPStatus.NOT_FOUND)
        return versions[number]

    def versions(self, name: str) -> Mapping[int, ServedModel]:
        """The versions of a model. Raises ServerError, 404, if there is no model of that name."""
        if name not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise ServerError(f"there is no model {name!r:.200}; the server has {known}", HTTPStatus.NOT_FOUND)
        return self._models[name]

    def close(self, timeout: float) -> None:
        """Let all models finish what waits for them, for at most about `timeout` seconds each."""
        for model in self:
            model.scheduler.close(timeout)
