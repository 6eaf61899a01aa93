"""The models that a server has open, and how a request's words find one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stablernn_registry import RefError, Registry, parse_ref
from stablernn_registry.errors import near
from stablernn_server.errors import InputError, ModelLoadError, UnknownModelError, cut
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.settings import Settings


class ModelTable:
    """Open models by name and version.

    Without a version, a name answers with the version that was asked for by alias (the first, if several were), else
    with its highest open version.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[int, OnnxModel]] = {}
        self._preferred: dict[str, int] = {}

    @classmethod
    def open(cls, settings: Settings) -> ModelTable:
        """Open everything that the settings name.

        Raises:
            ModelLoadError: If a version cannot be served, or there is none to serve.
            DeviceError: If the device that was asked for is not there.
            stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
        """
        registry = Registry(settings.registry)
        references = settings.models or tuple(entry.name for entry in registry.list())
        if not references:
            raise ModelLoadError(f"The registry {registry.root} holds no models; publish one with 'stablernn export'.")
        table = cls()
        for reference in references:
            version = registry.get(reference)
            model = table.get(version.name, version.version)
            if model is None:
                model = OnnxModel.load(version, settings.device, settings.threads)
            table.add(model, preferred=parse_ref(reference).alias is not None)
        return table

    def add(self, model: OnnxModel, *, preferred: bool = False) -> None:
        """Serve ``model`` under its name; ``preferred`` lets it answer for the bare name if no other does already."""
        self._models.setdefault(model.name, {})[model.version] = model
        if preferred:
            self._preferred.setdefault(model.name, model.version)

    def get(self, name: str, version: int) -> OnnxModel | None:
        return self._models.get(name, {}).get(version)

    def __iter__(self) -> Iterator[OnnxModel]:
        """Every open model, by name and version."""
        for name in sorted(self._models):
            for version in sorted(self._models[name]):
                yield self._models[name][version]

    def names(self) -> list[str]:
        return sorted(self._models)

    def versions(self, name: str) -> list[int]:
        return sorted(self._models.get(name, {}))

    def find(self, reference: str, version: str | None = None) -> OnnxModel:
        """The model that answers for ``reference``.

        Args:
            reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.
            version: A number as text, from the path of the request.

        Raises:
            InputError: If ``version`` is no number.
            UnknownModelError: If nothing open answers to these words.
        """
        try:
            ref = parse_ref(reference)
        except RefError as error:
            raise UnknownModelError(str(error)) from error
        name, alias, number = ref.name, ref.alias, ref.version
        if version is not None:
            try:
                asked = parse_ref(f"{name}:{version}").version
            except RefError as error:
                raise InputError(f"The version of a model is a number from 1, got '{cut(version)}'.") from error
            if number not in (None, asked):
                raise InputError(f"The model '{reference}' and the version {version} contradict each other.")
            number = asked
        if name not in self._models:
            raise UnknownModelError(
                f"Unknown model '{name}'.{near(name, self._models)} Served models: {_words(self.names())}."
            )
        candidates = self._models[name]
        if alias is not None:
            number_of_alias = next((n for n, model in candidates.items() if alias in model.aliases), None)
            if number_of_alias is None or number not in (None, number_of_alias):
                wanted = f"alias '{alias}'" if number is None else f"alias '{alias}' at version {number}"
                raise UnknownModelError(f"The model '{name}' has no {wanted} here. {self._open_versions(name)}")
            return candidates[number_of_alias]
        if number is None:
            return candidates[self._preferred.get(name, max(candidates))]
        if number not in candidates:
            raise UnknownModelError(f"The model '{name}' has no version {number} here. {self._open_versions(name)}")
        return candidates[number]

    def _open_versions(self, name: str) -> str:
        return f"Served: {_words(_described(self._models[name][number]) for number in self.versions(name))}."


def _described(model: OnnxModel) -> str:
    return str(model.version) + (f" ({', '.join(model.aliases)})" if model.aliases else "")


def _words(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"
