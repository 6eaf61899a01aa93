"""The data of a run, loaded from the source in its settings or from another one."""

from __future__ import annotations

import pytest

from stablernn.data.options import NAMED_OPTIONS, LoadOptions
from stablernn.training import run_data
from stablernn.training.settings.config import Config, DataConfig, ModelConfig


class LoadedError(Exception):
    """Ends the loading with the options that it got."""

    def __init__(self, options: LoadOptions) -> None:
        super().__init__()
        self.options = options


CONFIG = Config(
    model=ModelConfig(cell="gru"),
    data=DataConfig(
        source="pmnist",
        test="test.npz",
        variant="released",
        partial=True,
        permutation="urnn",
        length=100,
        validation_fraction=0.3,
    ),
)


def loading_options(monkeypatch: pytest.MonkeyPatch, source: str | None) -> LoadOptions:
    def raise_loaded(options: LoadOptions) -> None:
        raise LoadedError(options)

    monkeypatch.setattr(run_data, "load_source", raise_loaded)
    with pytest.raises(LoadedError) as caught:
        run_data.load_run_data(CONFIG, source)
    return caught.value.options


@pytest.mark.parametrize("source", [None, "pmnist"])
def test_the_source_of_the_settings_is_loaded_with_their_options(
    monkeypatch: pytest.MonkeyPatch, source: str | None
) -> None:
    options = loading_options(monkeypatch, source)
    assert (options.source, options.test) == ("pmnist", "test.npz")
    assert options.changed(NAMED_OPTIONS) == NAMED_OPTIONS


@pytest.mark.parametrize("source", ["new.npz", ""])
def test_another_source_is_loaded_without_the_test_file_and_options_of_a_dataset(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    options = loading_options(monkeypatch, source)
    assert (options.source, options.test) == (source, None)
    assert options.changed(NAMED_OPTIONS) == ()
    assert options.validation_fraction == 0.3
