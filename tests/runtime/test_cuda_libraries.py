"""What ONNX Runtime needs for CUDA and does not have, told on a machine without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort
import pytest

from stablernn_runtime.engines import devices
from stablernn_runtime.engines.devices import missing_libraries, needed_libraries

PROVIDER = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
needs_provider = pytest.mark.skipif(not PROVIDER.is_file(), reason="this ONNX Runtime has no CUDA provider")


@pytest.fixture
def fresh() -> Iterator[None]:
    missing_libraries.cache_clear()
    yield
    missing_libraries.cache_clear()


@needs_provider
def test_what_the_provider_links_to_is_what_binutils_read() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not on this machine")
    text = subprocess.run(["readelf", "-d", PROVIDER], capture_output=True, text=True, check=True).stdout
    listed = [line.rpartition("[")[2].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
    assert needed_libraries(PROVIDER) == listed
    assert any(name.startswith("libcublas.so.") for name in listed)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_libraries_are_found_where_pip_puts_them_in_whatever_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("there is no compiler on this machine")
    lib = tmp_path / "nvidia" / "cu13" / "lib"
    capi = tmp_path / "onnxruntime" / "capi"
    for folder in (lib, capi):
        folder.mkdir(parents=True)

    def link(path: Path, *needs: str) -> None:
        words = ["cc", "-shared", "-x", "c", "/dev/null", "-x", "none", "-nostdlib", "-Wl,--no-as-needed", "-o", path]
        subprocess.run([*words, f"-Wl,-soname,{path.name}", f"-L{lib}", *(f"-l:{name}" for name in needs)], check=True)

    link(lib / "libcusecond.so.1")
    # Of this one the linker finds the other only when that is loaded already.
    link(lib / "libcufirst.so.1", "libcusecond.so.1")
    link(lib / "libcugone.so.1")
    provider = capi / "libonnxruntime_providers_cuda.so"
    link(provider, "libcufirst.so.1", "libcusecond.so.1", "libcugone.so.1")
    (lib / "libcugone.so.1").unlink()
    assert needed_libraries(provider) == ["libcufirst.so.1", "libcusecond.so.1", "libcugone.so.1"]
    monkeypatch.setattr(devices, "_LOADED_LATER", ())
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "onnxruntime" / "__init__.py"))
    assert missing_libraries() == ("libcugone.so.1",)


@pytest.mark.usefixtures("fresh")
def test_a_build_without_cuda_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "onnxruntime" / "__init__.py"))
    assert missing_libraries() == ()
