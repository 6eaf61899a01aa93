"""The manifests and the chart in deploy/ fit the schemas of Kubernetes, the image, the settings and the commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from packages import ROOT
from stablernn._version import __version__
from stablernn_cli.commands import dockerize as build_files
from stablernn_cli.commands.predict import Shard
from stablernn_cli.errors import REFUSED, USAGE
from stablernn_cli.main import app
from stablernn_server import Settings
from stablernn_server.auth import Auth, required_access
from stablernn_server.key_files import create_state_tokens

Manifest = dict[str, Any]

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "stablernn"
FILES = sorted(path for path in DEPLOY.rglob("*.yaml") if CHART not in path.parents)
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KUBERNETES = ("1.29", "1.34")
"""The first release that takes every field of the job without a feature gate, and the first in which all are stable."""

CUSTOM_KINDS = {"InferenceService", "Kustomization", "PrometheusRule", "ServiceMonitor", "ServingRuntime"}
"""Kinds of other projects, whose schemas are not at hand."""


def read(path: Path) -> Manifest:
    [manifest] = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return manifest


MANIFESTS = {path.relative_to(DEPLOY).as_posix(): read(path) for path in FILES}
SERVER = {
    manifest["kind"]: manifest
    for name, manifest in MANIFESTS.items()
    if name.startswith("kubernetes/server/") and manifest["kind"] != "Kustomization"
}
JOB = MANIFESTS["kubernetes/predict-job.yaml"]
RUNTIME = MANIFESTS["kserve/serving-runtime.yaml"]
INFERENCE_SERVICE = MANIFESTS["kserve/inference-service.yaml"]
PODS: dict[str, Manifest] = {
    "server": SERVER["Deployment"]["spec"]["template"]["spec"],
    "job": JOB["spec"]["template"]["spec"],
    "kserve": {name: RUNTIME["spec"][name] for name in ("containers", "volumes")},
}
SERVING_PODS = ("server", "kserve")


def container_of(pod: Manifest) -> Manifest:
    [container] = pod["containers"]
    return container


def values_of(container: Manifest) -> dict[str, str]:
    """The variables of a container that have a value, by name."""
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


def assert_valid(manifest: Manifest) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for version in KUBERNETES:
        validator.validate(manifest, version, strict=True)


def test_manifests_and_the_containers_of_the_serving_runtime_fit_the_schemas_of_their_kinds() -> None:
    for manifest in MANIFESTS.values():
        if manifest["kind"] not in CUSTOM_KINDS:
            assert_valid(manifest)
    assert_valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kserve"}, "spec": PODS["kserve"]})


def test_kustomize_lists_every_manifest_of_the_server() -> None:
    listed = MANIFESTS["kubernetes/server/kustomization.yaml"]["resources"]
    files = {path.name for path in FILES if path.parent.name == "server"}
    assert set(listed) == files - {"kustomization.yaml"}


def test_every_variable_of_manifests_and_chart_is_a_setting_of_the_server() -> None:
    names = {entry["name"] for pod in PODS.values() for entry in container_of(pod)["env"]}
    names |= {entry["name"] for entry in INFERENCE_SERVICE["spec"]["predictor"]["model"]["env"]}
    for path in (CHART / "values.yaml", CHART / "templates" / "deployment.yaml"):
        names |= set(re.findall(r"STABLERNN_\w+", path.read_text(encoding="utf-8")))
    assert {name.removeprefix("STABLERNN_").lower() for name in names} <= set(Settings.model_fields)
    for pod in PODS.values():
        values = {
            name.removeprefix("STABLERNN_").lower(): value for name, value in values_of(container_of(pod)).items()
        }
        assert Settings(**values).models == tuple(filter(None, [values.get("models")]))


def test_the_values_of_the_secret_are_taken_by_the_server() -> None:
    secrets = {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]["key"]
        for entry in container_of(PODS["kserve"])["env"]
        if "valueFrom" in entry
    }
    assert secrets == {"STABLERNN_INFER_TOKENS": "infer_token", "STABLERNN_STATE_KEY": "state_key"}
    # A file ends with a line break, which becomes part of the variable.
    settings = Settings(infer_tokens="5" * 64, state_key="a5" * 32 + "\n")
    assert [identity.role for _, identity in Auth.from_settings(settings).digests] == ["infer"]
    assert create_state_tokens(settings).key == bytes.fromhex("a5" * 32)


@pytest.mark.parametrize("pod", PODS)
def test_a_container_is_closed(pod: str) -> None:
    container = container_of(PODS[pod])
    user = PODS[pod].get("securityContext", {}) | container["securityContext"]
    assert user["runAsNonRoot"]
    assert {user["runAsUser"], user["runAsGroup"], user.get("fsGroup", build_files.USER)} == {build_files.USER}
    assert user["readOnlyRootFilesystem"]
    assert not user["allowPrivilegeEscalation"]
    assert user["capabilities"] == {"drop": ["ALL"]}
    # The only place for temporary files.
    assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in PODS[pod]["volumes"]}


@pytest.mark.parametrize("pod", SERVING_PODS)
def test_probes_are_routes_without_access_control_on_the_port_of_the_image(pod: str) -> None:
    container = container_of(PODS[pod])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert list(ports.values()) == [build_files.PORT]
    assert f"STABLERNN_PORT={build_files.PORT}" in DOCKERFILE
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    for name, probe in probes.items():
        request = probe["httpGet"]
        assert required_access(request["path"]) == "open"
        assert request["path"].endswith("/live" if name == "liveness" else "/ready")
        assert ports.get(request["port"], request["port"]) == build_files.PORT
    seconds = probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]
    assert seconds > 2 * Settings().load_timeout_seconds


def test_the_files_of_the_server_are_mounted() -> None:
    pod = PODS["server"]
    container = container_of(pod)
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert f"STABLERNN_REGISTRY={mounts['registry']['mountPath']}" in DOCKERFILE
    assert mounts["registry"]["readOnly"]
    assert volumes["registry"]["persistentVolumeClaim"]["readOnly"]
    secret = volumes["secrets"]["secret"]
    # The server refuses a tokens file that others can read.
    assert secret["defaultMode"] == 0o440
    paths = {f"{mounts['secrets']['mountPath']}/{item['path']}" for item in secret["items"]}
    values = values_of(container)
    assert paths == {values["STABLERNN_TOKENS_FILE"], values["STABLERNN_STATE_KEY_FILE"]}


def test_the_server_is_not_killed_while_it_drains() -> None:
    pod = PODS["server"]
    [pause] = re.findall(r"sleep\((\d+)\)", container_of(pod)["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert int(pause) + build_files.STOP_SECONDS < pod["terminationGracePeriodSeconds"]
    assert INFERENCE_SERVICE["spec"]["predictor"]["terminationGracePeriodSeconds"] > build_files.STOP_SECONDS


def test_objects_find_each_other() -> None:
    deployment = SERVER["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    for selected in (
        deployment["selector"]["matchLabels"],
        SERVER["Service"]["spec"]["selector"],
        SERVER["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        SERVER["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selected == labels
    assert (
        SERVER["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == SERVER["Deployment"]["metadata"]["name"]
    )
    # The autoscaler and a fixed number would overwrite each other.
    assert "replicas" not in deployment
    model = INFERENCE_SERVICE["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"].items() <= RUNTIME["spec"]["supportedModelFormats"][0].items()
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]


@pytest.mark.parametrize("pod", PODS)
def test_the_arguments_are_a_command_line(pod: str, tmp_path: Path) -> None:
    arguments = [word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container_of(PODS[pod])["args"]]
    name, *words = arguments
    commands: Any = typer.main.get_command(app)
    command = commands.commands[name]
    existing = [str(tmp_path) if word.startswith("/") else word for word in words]
    assert command.make_context("stablernn", existing, allow_extra_args=False).params


def test_the_job_has_a_pod_for_each_shard_and_knows_the_exit_codes() -> None:
    spec = JOB["spec"]
    arguments = container_of(PODS["job"])["args"]
    shard = arguments[arguments.index("--shard") + 1]
    assert Shard.parse(shard.replace("$(JOB_COMPLETION_INDEX)", "0")).count == spec["completions"]
    assert spec["completionMode"] == "Indexed"
    rules = spec["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"FailIndex": [REFUSED], "FailJob": [USAGE]}


def test_images_and_chart_have_the_version_of_the_package() -> None:
    chart = read(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
    tags = {container_of(pod)["image"].rpartition(":")[2] for pod in PODS.values()}
    assert tags == {__version__}


def paths_of(values: Manifest, prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value and prefix + name not in ("settings", "resources"):
            yield from paths_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_templates_use_every_value_of_the_chart_and_no_other() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    assert set(re.findall(r"\.Values\.([\w.]+)", templates)) == set(paths_of(values))


def render(values: Manifest | None = None, release: str = "stablernn") -> dict[str, Manifest]:
    """Return the objects of the chart by kind, rendered by the program Helm or, without it, by its library."""
    if shutil.which("helm") is not None:
        command = ["helm", "template", release, str(CHART), "--values", "-"]
        done = subprocess.run(command, input=yaml.safe_dump(values or {}), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        texts = [done.stdout]
    else:
        library = pytest.importorskip("helm_python", reason="neither helm nor helm-python-sdk is installed")
        with library.Chart.load(str(CHART)) as chart:
            texts = list(chart.render(values or {}, name=release).values())
    objects = [tree for text in texts for tree in yaml.safe_load_all(text) if tree]
    return {tree["kind"]: tree for tree in objects}


def test_the_chart_and_the_manifests_are_the_same() -> None:
    rendered = render()
    for manifest in rendered.values():
        labels = manifest["metadata"]["labels"]
        for name in ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"):
            del labels[name]
    assert rendered == SERVER


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({"autoscaler": {"enabled": False}, "replicas": 3}, {"HorizontalPodAutoscaler"}),
        (
            {
                "networkPolicy": {"enabled": False},
                "disruptionBudget": {"enabled": False},
                "registry": {"claim": ""},
                "models": [],
                "settings": {"STABLERNN_MAX_QUEUE": "256"},
            },
            {"NetworkPolicy", "PodDisruptionBudget"},
        ),
        (
            {
                "imagePullSecrets": [{"name": "pull"}],
                "nodeSelector": {"disk": "ssd"},
                "affinity": {"nodeAffinity": {}},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "startupSeconds": 301,
            },
            set(),
        ),
    ],
    ids=["fixed-replicas", "models-in-the-image", "placed"],
)
def test_the_chart_with_other_values_fits_the_schemas(values: Manifest, kinds: set[str]) -> None:
    rendered = render(values, "digits")
    assert set(rendered) == set(SERVER) - kinds
    for manifest in rendered.values():
        assert manifest["metadata"]["name"] == "digits"
        assert_valid(manifest)
    spec = rendered["Deployment"]["spec"]
    assert spec.get("replicas") == values.get("replicas")
    container = container_of(spec["template"]["spec"])
    variables = values_of(container)
    assert ("STABLERNN_MODELS" in variables) == (values.get("models") != [])
    assert values.get("settings", {}).items() <= variables.items()
    seconds = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    assert 0 <= seconds - values.get("startupSeconds", 180) <= 1
