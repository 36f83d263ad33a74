"""Files under infra/: valid schemas, pinned versions, unprivileged, closed ports, no secrets."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

ROOT = Path(__file__).resolve().parent.parent
INFRA = ROOT / "infra"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text())
POOLS = sorted((INFRA / "work_pools").glob("*.json"))
MANIFESTS = [
    document
    for path in sorted((INFRA / "kubernetes").rglob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
WORKLOADS = [document for document in MANIFESTS if document["kind"] == "Deployment"]
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", " ", (INFRA / "Containerfile").read_text()).splitlines()
    if line.strip() and not line.startswith("#")
]
TARGETS = ("cpu", "gpu", "vllm")
SAMPLING = yaml.safe_load((INFRA / "kubernetes" / "sampling" / "kustomization.yaml").read_text())
SECRET = re.compile(r"PASSWORD|SECRET|SESSION_TOKEN|ACCESS_KEY|API_KEY|AUTH_STRING|CONNECTION_URL|STORE_URI")


def template(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def leaves(tree: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar with the path that leads to it."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{at}.{key}")
    else:
        yield at, tree


def images() -> list[str]:
    found = [service["image"] for service in COMPOSE["services"].values()]
    found += [c["image"] for w in WORKLOADS for c in w["spec"]["template"]["spec"]["containers"]]
    found += [p["default"] for path in POOLS if (p := template(path)["variables"]["properties"].get("image"))]
    stages = {rest.split(" AS ")[1] for word, rest in INSTRUCTIONS if word == "FROM"}
    return found + [
        name
        for word, rest in INSTRUCTIONS
        if word == "FROM" and (name := rest.split(" AS ")[0]) not in stages
    ]


@pytest.mark.parametrize("image", sorted(set(images())))
def test_images_are_pinned_to_a_full_version(image: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", image), f"{image} is not pinned"


# --- container file
# --------------------------------------------------------------------------------------------------


def test_hadolint_passes() -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")
    assert hadolint, "pip install -e .[dev] brings it"
    result = subprocess.run([hadolint, INFRA / "Containerfile"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, those of the stage it is built from before its own."""
    instructions: dict[str, list[tuple[str, str]]] = {}
    for word, rest in INSTRUCTIONS:
        if word == "FROM":
            parent, stage = rest.split(" AS ")
            instructions[stage] = list(instructions.get(parent, []))
        else:
            instructions[stage].append((word, rest))
    return instructions


def test_default_build_target_is_the_small_image() -> None:
    assert set(TARGETS) <= set(stages()) and list(stages())[-1] == "cpu"


@pytest.mark.parametrize("target", TARGETS)
def test_images_record_their_revision(target: str) -> None:
    """As `ratchet.tasks.machine.provenance` reads it; the build lines hand it over."""
    words = stages()[target]
    assert words.index(("ENV", "RATCHET_REVISION=$REVISION")) > words.index(("ARG", "REVISION"))
    lines = re.findall(r"^#   docker build .*", (INFRA / "Containerfile").read_text(), re.M)
    assert any(
        f"--target {target} -t {image(target)}" in line and "--build-arg REVISION " in line for line in lines
    )
    assert ("RUN", "git") in [
        (word, rest[rest.index("git") :][:3]) for word, rest in words if "apt-get" in rest and "git" in rest
    ], "a worker in a checkout reads its revision and its data versions by git"


def image(target: str) -> str:
    import tomllib

    return f"ratchet:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}-{target}"


def test_own_images_are_build_targets() -> None:
    assert {one for one in images() if one.startswith("ratchet:")} <= {image(target) for target in TARGETS}


def test_containers_do_not_run_as_root_and_install_what_is_locked() -> None:
    users = {stage: [rest for word, rest in words if word == "USER"] for stage, words in stages().items()}
    assert all(users[target][-1] == "10001:10001" for target in TARGETS)
    installs = [rest for word, rest in INSTRUCTIONS if word == "RUN" and "pip install" in rest]
    locked = [
        re.findall(r"--constraint /?(\S+)", line) for line in installs
    ]  # vLLM, in an environment of its own, wants an older fastapi
    assert sorted(locked) == [["constraints-vllm.txt"], ["infra/constraints.txt"], ["infra/constraints.txt"]]
    copied = {
        part
        for word, rest in INSTRUCTIONS
        if word == "COPY" and "--from" not in rest
        for part in rest.split()[:-1]
    }
    assert all((ROOT / part).exists() for part in copied)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed


def test_images_do_not_request_gpus() -> None:
    """Where NVIDIA's runtime is the default one it gives every GPU to an image that says `all`, and to one
    that says CUDA_VERSION alone.
    """
    environment = {
        target: dict(
            pair.split("=", 1)
            for word, rest in stages()[target]
            if word == "ENV"
            for pair in rest.split()
            if "=" in pair
        )
        for target in TARGETS
    }
    assert not [
        name
        for env in environment.values()
        for name in env
        if name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_VERSION")
    ]
    wanted = {
        target: set(filter(None, env.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")))
        for target, env in environment.items()
    }
    assert wanted == {"cpu": set(), "gpu": {"compute", "utility"}, "vllm": {"compute", "utility"}}, (
        "NVML, which tells GPUs apart, is a utility"
    )


def test_images_install_locked_versions() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = {line.split("==")[0].lower() for line in (INFRA / "constraints.txt").read_text().splitlines()}
    wanted = {re.split(r"[<>=\[]", need)[0].lower() for extra in ("team", "scale") for need in extras[extra]}
    assert wanted <= locked


# --- vLLM
# ------------------------------------------------------------------------------------------------------------


def test_vllm_version_is_equal_in_all_files() -> None:
    page = (ROOT / "docs" / "vllm.md").read_text()
    (build,) = re.findall(r"vllm==([\d.]+)", (INFRA / "Containerfile").read_text())
    (make,) = re.findall(r"\$\(VLLM\)==([\d.]+)", (ROOT / "Makefile").read_text())
    (serve,) = {one.split(":v")[1] for one in images() if one.startswith("vllm/")}
    assert build == make == serve
    assert {build.rsplit(".", 1)[0]} == set(re.findall(r"vLLM (\d+\.\d+)", page))


def test_the_image_for_sampling_has_vllm_where_profiles_look_for_it() -> None:
    """Prefect starts a run in a copy of the image's working directory, in which links are kept."""
    words = stages()["vllm"]
    (copied,) = [rest.split()[-1] for word, rest in words if word == "COPY" and "install-vllm" in rest]
    (link,) = [
        rest.split()[-1] for word, rest in words if word == "RUN" and rest.startswith(f"ln -s {copied} ")
    ]
    pythons = {
        python
        for path in (ROOT / "flows" / "recipes" / "profiles").glob("*.yaml")
        if (python := yaml.safe_load(path.read_text()).get("vllm", {}).get("python"))
    }
    assert pythons == {f"{link}/bin/python"}
    assert [rest for word, rest in words if word == "WORKDIR"] == ["/work"]


def test_vllm_server_has_the_options_the_client_needs() -> None:
    line = re.search(
        r"^VLLM_SERVER_DEV_MODE=1 vllm serve MODEL (.*)$", (ROOT / "docs" / "vllm.md").read_text(), re.M
    )
    assert line
    wanted = {option.strip().replace(" ", "=") for option in re.findall(r"--[\w-]+(?: [^-]\S*)?", line[1])}
    added = [
        (one["path"].split("/")[-2], one["value"])
        for patch in SAMPLING["patches"]
        for one in yaml.safe_load(patch["patch"])
    ]
    assert {value for where, value in added if where == "args"} == {
        option for option in wanted if not option.startswith("--host")
    }
    assert [value for where, value in added if where == "env"] == [
        {"name": "VLLM_SERVER_DEV_MODE", "value": "1"}
    ]


# --- team server
# -----------------------------------------------------------------------------------------------------


def test_compose_fits_its_schema() -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    jsonschema.validate(COMPOSE, schema)
    name, service = next(iter(COMPOSE["services"].items()))
    with pytest.raises(jsonschema.ValidationError, match="resorces"):
        jsonschema.validate({**COMPOSE, "services": {name: {**service, "resorces": {}}}}, schema)


def test_ports_open_on_loopback_unless_told_otherwise() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("${BIND:-127.0.0.1}:") for port in ports)


def test_the_databases_are_reached_by_the_services_alone() -> None:
    assert not any("ports" in COMPOSE["services"][name] for name in ("postgres", "s3"))
    kinds = {one["spec"].get("type", "ClusterIP") for one in MANIFESTS if one["kind"] == "Service"}
    assert kinds == {"ClusterIP"} and any(one["kind"] == "NetworkPolicy" for one in MANIFESTS)


def test_compose_requires_every_secret_and_contains_none() -> None:
    secrets = {
        name: value
        for service in COMPOSE["services"].values()
        for name, value in service.get("environment", {}).items()
        if SECRET.search(name)
    }
    assert len(secrets) > 6
    for name, value in secrets.items():
        assert re.search(r"\$\{\w+:\?[^}]+\}", value), f"{name} is not asked for"
    names = set(re.findall(r"^for name in (.*); do", (INFRA / "new-secrets").read_text(), re.M)[0].split())
    required = set(re.findall(r"\$\{(\w+):\?", (INFRA / "compose.yaml").read_text()))
    assert names == required, "infra/new-secrets makes other names than compose.yaml asks for"


def test_workers_reach_the_store_where_stages_exchange_products() -> None:
    worker, store = COMPOSE["services"]["worker"]["environment"], COMPOSE["services"]["bucket"]["environment"]
    assert {k: v for k, v in worker.items() if k.startswith("AWS_")} == {
        k: v for k, v in store.items() if k.startswith("AWS_")
    }
    assert {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= worker.keys()


def test_servers_require_a_password() -> None:
    services = COMPOSE["services"]
    assert "PREFECT_SERVER_API_AUTH_STRING" in services["prefect"]["environment"]
    for command in (
        services["mlflow"]["command"],
        *(
            c["command"]
            for w in WORKLOADS
            if w["metadata"]["name"] == "mlflow"
            for c in w["spec"]["template"]["spec"]["containers"]
        ),
    ):
        assert command[command.index("--app-name") + 1] == "basic-auth" and "--serve-artifacts" in command


def test_compose_references_are_defined() -> None:
    for name, service in COMPOSE["services"].items():
        for other in service.get("depends_on", {}):
            assert other in COMPOSE["services"], f"{name} waits for {other}"
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"]
        for volume in service.get("volumes", []):
            assert volume.startswith("..") or volume.split(":")[0] in COMPOSE["volumes"]


def test_new_secrets_are_private_and_never_overwritten(tmp_path: Path) -> None:
    script = shutil.copy(INFRA / "new-secrets", tmp_path)
    subprocess.run([script], check=True, capture_output=True)
    file = tmp_path / ".env"
    values = [line.split("=")[1] for line in file.read_text().splitlines()]
    assert file.stat().st_mode & 0o777 == 0o600 and len(set(values)) == len(values)
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in values)
    again = subprocess.run([script], capture_output=True, text=True)
    assert again.returncode == 1 and "there already" in again.stderr
    assert subprocess.run(["git", "check-ignore", "-q", "infra/.env"], cwd=ROOT).returncode in (
        0,
        128,
    )  # 128: no git here


# --- Kubernetes
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: f"{m['kind']} {m['metadata']['name']}")
def test_manifests_fit_their_schema(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    with pytest.raises(kubernetes_validate.ValidationError, match="specc"):
        kubernetes_validate.validate(
            {**manifest, "specc": {}}, kubernetes_validate.latest_version(), strict=True
        )


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w["metadata"]["name"])
def test_pods_are_unprivileged_and_bounded(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    check_pod(pod)
    for container in pod["containers"]:
        assert "memory" in container["resources"]["limits"]
        for variable in container["env"]:
            if SECRET.search(variable["name"]) and not variable["name"].startswith(
                "PREFECT_INTEGRATIONS"
            ):  # those name a Secret
                assert "secretKeyRef" in variable["valueFrom"], f"{variable['name']} is not a reference"


def check_pod(pod: dict[str, Any]) -> None:
    """What a namespace with pod security `restricted` lets in. Services are found by name: as variables, the
    one called `vllm` would be VLLM_PORT=tcp://..., which vLLM refuses, and the one called `mlflow` a port
    that is no number.
    """
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {
        "type": "RuntimeDefault"
    }
    mounted = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == mounted


def test_kustomizations_name_files_that_exist_and_every_file() -> None:
    known = {
        "apiVersion",
        "kind",
        "namespace",
        "nameSuffix",
        "labels",
        "resources",
        "configMapGenerator",
        "patches",
    }
    for path in (INFRA / "kubernetes").rglob("kustomization.yaml"):
        written = yaml.safe_load(path.read_text())
        assert written.keys() <= known
        folders = {name for name in written["resources"] if (path.parent / name).is_dir()}
        assert set(written["resources"]) - folders == {p.name for p in path.parent.glob("*.yaml")} - {
            path.name
        }


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("folder", ["base", "serving", "sampling"])
def test_kustomize_builds(folder: str) -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", INFRA / "kubernetes" / folder], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    for one in yaml.safe_load_all(built.stdout):
        assert one["metadata"].get("namespace", "ratchet") == "ratchet"
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
        if folder == "sampling":
            assert one["metadata"]["labels"]["app"] == "vllm-sampling", (
                "it would answer for the server beside it"
            )


def test_prefect_settings_exist() -> None:
    """Prefect ignores misspelt settings."""
    from prefect import settings

    named = {name for service in COMPOSE["services"].values() for name in service.get("environment", {})}
    named |= {
        variable["name"]
        for w in WORKLOADS
        for c in w["spec"]["template"]["spec"]["containers"]
        for variable in c["env"]
    }
    named |= {name for path in POOLS for name in template(path)["variables"]["properties"]["env"]["default"]}
    named |= {pair.split("=")[0] for word, rest in INSTRUCTIONS if word == "ENV" for pair in rest.split()}
    ours = {
        name for name in named if name.startswith("PREFECT_") and not name.startswith("PREFECT_INTEGRATIONS_")
    }  # of other packages
    assert len(ours) > 8 and not {name for name in ours if not hasattr(settings, name)}


def test_kubernetes_worker_cancels_pending_pods_within_seconds() -> None:
    """Prefect's default is never: only a run that has begun watches for its own cancelling."""
    from prefect.settings.models.worker import WorkerSettings

    (worker,) = (
        w["spec"]["template"]["spec"]["containers"][0] for w in WORKLOADS if w["metadata"]["name"] == "worker"
    )
    settings = WorkerSettings(
        **{
            name.removeprefix("PREFECT_WORKER_").lower(): one["value"]
            for one in worker["env"]
            if (name := one["name"]).startswith("PREFECT_WORKER_")
        }
    )
    assert settings.enable_cancellation and settings.cancellation_poll_seconds <= 10


# --- work pools
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", POOLS, ids=lambda p: p.stem)
def test_work_pool_templates_are_valid_in_prefect(path: Path) -> None:
    """The schema is one; defaults keep to it; placeholders and variables match; keys are those of Prefect's
    own template.
    """
    import importlib.util

    workload = template(path)
    schema = workload["variables"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({k: v["default"] for k, v in schema["properties"].items() if "default" in v}, schema)
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(workload["job_configuration"])))
    assert used == set(schema["properties"])
    spec = importlib.util.find_spec("prefect")  # found, not imported: 3 s
    assert spec is not None and spec.origin is not None
    shipped = json.loads(
        (
            Path(spec.origin).parent / "server/api/collections_data/views/aggregate-worker-metadata.json"
        ).read_text()
    )
    name = path.stem if path.stem == "process" else f"prefect-{path.stem}"
    theirs = shipped["prefect" if name == "process" else name][path.stem]["default_base_job_configuration"]
    newer = {"container_create_kwargs"}  # of prefect-docker since 0.6; Prefect ships an older template
    assert set(workload["job_configuration"]) <= set(theirs["job_configuration"]) | newer


@pytest.mark.parametrize("path", POOLS, ids=lambda p: p.stem)
def test_prefect_server_accepts_the_work_pools(path: Path) -> None:
    from prefect.server.schemas.actions import WorkPoolCreate

    workload = template(path)
    WorkPoolCreate(name=path.stem, type=path.stem, base_job_template=workload)
    unknown = {**workload, "job_configuration": {**workload["job_configuration"], "command": "{{ comand }}"}}
    with pytest.raises(ValueError, match="comand"):
        WorkPoolCreate(name=path.stem, type=path.stem, base_job_template=unknown)


def configuration(pool: str, block: str = "", **variables: Any) -> Any:
    """What a worker makes of the template, by Prefect's own code; every Secret block holds `block`."""
    from prefect.workers.base import BaseJobConfiguration

    class Made(BaseJobConfiguration):
        job_manifest: Any = None
        container_create_kwargs: Any = None

    async def read(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(data={"value": block}, block_type_slug="secret")

    server: Any = SimpleNamespace(read_block_document_by_name=read)
    return asyncio.run(
        Made.from_template_and_values(
            template(INFRA / "work_pools" / f"{pool}.json"), variables, client=server
        )
    )


def test_a_kubernetes_job_fits_its_schema() -> None:
    """With what the worker itself adds and splits: a name, a command, a list of variables."""
    job = configuration(
        "kubernetes",
        name="run",
        labels={"a": "b"},
        command="prefect flow-run execute",
        gpus=2,
        memory_limit="64Gi",
        node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    )
    (container,) = job.job_manifest["spec"]["template"]["spec"]["containers"]
    container["args"] = container["args"].split()
    container["env"] = [{"name": name, "value": value} for name, value in container["env"].items()]
    kubernetes_validate.validate(job.job_manifest, kubernetes_validate.latest_version(), strict=True)
    container["resorces"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="resorces"):
        kubernetes_validate.validate(job.job_manifest, kubernetes_validate.latest_version(), strict=True)


def test_docker_jobs_use_dockers_options() -> None:
    from docker.models.containers import RUN_CREATE_KWARGS, RUN_HOST_CONFIG_KWARGS

    job = configuration("docker")
    assert job.container_create_kwargs.keys() <= {*RUN_CREATE_KWARGS, *RUN_HOST_CONFIG_KWARGS}
    assert template(INFRA / "work_pools" / "docker.json")["variables"]["properties"]["networks"][
        "default"
    ] == [f"{COMPOSE['name']}_default"]


def test_docker_runs_get_credentials_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"the worker's {name}")
    env, store = (
        configuration("docker", block="of the block").env,
        COMPOSE["services"]["worker"]["environment"],
    )
    assert env["MLFLOW_TRACKING_PASSWORD"] == "of the block"
    for name in store:
        if name.startswith("AWS_"):
            assert env[name] == (f"the worker's {name}" if SECRET.search(name) else store[name])
    assert env["AWS_SESSION_TOKEN"] == "the worker's AWS_SESSION_TOKEN"
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert configuration("docker").env["AWS_SESSION_TOKEN"] == "", "boto takes it for none"


def test_kubernetes_runs_request_gpus_shared_memory_and_secrets() -> None:
    manifest = template(INFRA / "work_pools" / "kubernetes.json")["job_configuration"]["job_manifest"]
    pod = manifest["spec"]["template"]["spec"]
    check_pod(pod)
    (container,) = pod["containers"]
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"] == "{{ gpus }}"
        and pod["nodeSelector"] == "{{ node_selector }}"
    )
    assert container["envFrom"] == [{"secretRef": {"name": "{{ secret }}"}}]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert manifest["spec"]["backoffLimit"] == 0, "Prefect decides about another try, not Kubernetes"


def test_a_docker_run_is_unprivileged_and_refers_to_its_secrets() -> None:
    job = template(INFRA / "work_pools" / "docker.json")
    extra = job["job_configuration"]["container_create_kwargs"]
    assert (
        extra["user"] == "10001:10001"
        and extra["cap_drop"] == ["ALL"]
        and "shm_size" in extra
        and "device_requests" in extra
    )
    env = job["variables"]["properties"]["env"]["default"]
    assert all(
        value.startswith(("{{ prefect.blocks.secret.", "{{ $"))
        for name, value in env.items()
        if SECRET.search(name)
    )


def test_no_file_holds_a_password_or_a_latest_tag() -> None:
    trees: dict[str, Any] = {
        "compose": COMPOSE,
        **{f"{m['kind']} {m['metadata']['name']}": m for m in MANIFESTS},
        **{p.name: template(p) for p in POOLS},
    }
    for name, tree in trees.items():
        for at, value in leaves(tree):
            assert not (isinstance(value, str) and value.endswith(":latest")), f"{name}{at}"
            assert not (isinstance(value, str) and re.search(r"://[^/\s:$]+:[^@$/\s]+@", value)), (
                f"{name}{at} holds a password"
            )
    assert not any(m["kind"] == "Secret" for m in MANIFESTS)
