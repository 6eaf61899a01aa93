"""Each distribution alone: ``make distributions`` installs it from wheels into an environment of its own, and uses it.

``bare_environments.py FOLDER`` builds the wheels and a registry of one model, and runs itself with the name of a
distribution by the Python of each environment.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMITS_MB = {"registry": 100, "runtime[cpu]": 250, "server[cpu]": 300, "client": 100}
"""Largest size of an environment with a distribution and everything that it requires."""
SUFFIX = "" if os.name == "posix" else ".exe"


def main(folder: Path) -> None:
    wheels = folder / "wheels"
    for project in ("client", "registry", "runtime", "server"):
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        pins = {**os.environ, "STABLERNN_PINS": "1"}
        subprocess.run([*command, "--wheel-dir", wheels, ROOT / project], env=pins, check=True)
    publish(folder)
    for distribution, limit in LIMITS_MB.items():
        python = install(distribution, folder, wheels)
        size = sum(path.stat().st_size for path in python.parents[1].rglob("*") if not path.is_symlink()) / 1e6
        run = [python, __file__, folder, distribution.partition("[")[0]]
        if distribution in ("registry", "runtime[cpu]"):
            subprocess.run(run, check=True)
        elif distribution == "client":
            server = [folder / "server" / "bin" / f"python{SUFFIX}", __file__, folder, "server"]
            with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                try:
                    subprocess.run([*run, process.stdout.readline().strip()], check=True)
                finally:
                    process.terminate()
        if size > limit:
            sys.exit(f"stablernn-{distribution} and what it requires take {size:.0f} MB, allowed are {limit}.")
        print(f"stablernn-{distribution} is alone in {size:.0f} MB.")


def publish(folder: Path) -> None:
    """Publish a classifier of three classes, and store one answer of it."""
    import numpy as np

    import stablernn as srn
    from stablernn_registry import Registry
    from stablernn_runtime import ServedModel

    model = srn.Classifier("lipschitz", 2, 3, 8).eval()
    x = np.random.default_rng(0).normal(size=(1, 20, 2)).astype(np.float32)
    model.fit_scaling([x[0]])
    report = srn.export(model, folder / "exported")
    facts = {"task": "classify", "cell": "lipschitz", "signature": report.signature, "features": ["a", "b"]}
    version = Registry(folder / "models").publish("m", report.files, {**facts, "labels": ["x", "y", "z"]})
    np.savez(folder / "answer.npz", x=x, **ServedModel.load(version, "cpu").run_numpy(x))


def install(distribution: str, folder: Path, wheels: Path) -> Path:
    """Install a distribution from the wheels into an environment of its own, and return its Python."""
    environment = folder / distribution.partition("[")[0]
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", environment], check=True)
    python = environment / "bin" / f"python{SUFFIX}"
    command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    constraints = ["--constraint", ROOT / "constraints.txt", "--find-links", wheels]
    subprocess.run([*command, *constraints, f"stablernn-{distribution}"], check=True)
    return python


def use(distribution: str, folder: Path, *arguments: str) -> None:
    """Use a distribution by the Python that runs this."""
    others = {"stablernn", "stablernn_cli", "stablernn_client", "stablernn_server", "torch", "onnx", "polars"}
    for name in others - {f"stablernn_{distribution}"}:
        assert importlib.util.find_spec(name) is None, f"{name} is installed beside stablernn-{distribution}."
    uses = {"registry": use_registry, "runtime": use_runtime, "server": serve, "client": use_client}
    uses[distribution](folder, *arguments)


def use_registry(folder: Path) -> None:
    from stablernn_registry import Registry

    registry = Registry(folder / "models")
    registry.set_alias("m", "production", 1)
    assert registry.get("m@production").version == 1
    report = registry.verify("m:1")
    assert report.ok, report.problems


def use_runtime(folder: Path) -> None:
    import numpy as np

    from stablernn_registry import Registry
    from stablernn_runtime import ServedModel

    model = ServedModel.load(Registry(folder / "models").get("m:1"), "cpu")
    with np.load(folder / "answer.npz") as answer:
        outputs = model.run_numpy(answer["x"])
        assert all(np.array_equal(outputs[name], answer[name]) for name in answer if name != "x")


def serve(folder: Path) -> None:
    """Serve the model on a free port, and print the address."""
    import socket

    from stablernn_server import Settings, create_app
    from stablernn_server.server import Server

    settings = Settings(registry=folder / "models", models=("m:1",))
    listener = socket.create_server(("127.0.0.1", 0))
    on_ready = partial(print, f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    Server(create_app(settings), settings, quiet=True, on_ready=on_ready).run([listener])


def use_client(folder: Path, url: str) -> None:
    import numpy as np

    from stablernn_client import Client

    with np.load(folder / "answer.npz") as answer, Client(url) as client:
        [result] = client.classify("m", answer["x"][0])
        expected = dict(zip("xyz", answer["probabilities"][0], strict=True))
        assert all(abs(result.probabilities[name] - expected[name]) < 1e-6 for name in expected), result


if __name__ == "__main__":
    target = Path(sys.argv[1])
    use(sys.argv[2], target, *sys.argv[3:]) if len(sys.argv) > 2 else main(target)
