"""Manifests: valid by the published schemas, closed to others, and TF_CONFIG as each platform makes it."""

import json
import re

import jsonschema
import pytest
import yaml

from labkit.cluster import pods
from labkit.cluster.kubernetes import PodOptions, render_indexed_job, render_tfjob, task_from_kubernetes
from labkit.config import Config
from labkit.distributed.tf_config import make_tf_config, parse_tf_config
from labkit.errors import InputError
from tests.cluster.examples import GOLDEN, ROOT, check_golden, documented_commands, printed

SCHEMAS = json.loads((GOLDEN.parent / "schemas" / "manifests.json").read_text())
COMMON = "labkit cluster kubernetes --name run --image registry.example/labkit:0.1.0 --claim shared.claim"
GOLDEN_COMMANDS = {
    "job-gpus.yaml": f"{COMMON} --workers 4 --gpus 2 --max-restarts 5 --deadline-seconds 86400 "
    "--mount /mnt/lab -- train --sync --num-layers 56 --eval-batch-size 80 --variable-strategy GPU "
    "--job-dir /mnt/lab/runs/deep --rendezvous-seconds 60",
    "tfjob-sync.yaml": f"{COMMON} --kind tfjob --workers 3 -- train --sync --dataset shapes --num-layers 8 "
    "--train-batch-size 96 --eval-batch-size 300",
    "tfjob-async-gpus.yaml": f"{COMMON} --kind tfjob --workers 3 --ps 2 --gpus 1 --grace-seconds 30 -- train "
    "--dataset shapes --num-layers 8 --variable-placement greedy --bind 0.0.0.0",
}
EVERY_COMMAND = {**documented_commands(), **GOLDEN_COMMANDS}
EVERY_COMMAND = {name: text for name, text in EVERY_COMMAND.items() if name.endswith(".yaml")}

every_manifest = pytest.mark.parametrize("command", EVERY_COMMAND.values(), ids=EVERY_COMMAND)


def manifests(command: str) -> list[dict]:
    return list(yaml.safe_load_all(printed(command)))


def validate(manifest: dict) -> None:
    schema = {"$ref": f"#/$defs/{manifest['kind']}", "$defs": SCHEMAS["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(manifest)


def pods_of(manifest: dict) -> dict[str, dict]:
    """Return the pod templates of a Job or TFJob by replica type."""
    if manifest["kind"] == "TFJob":
        replicas = manifest["spec"]["tfReplicaSpecs"]
        return {name: spec["template"] for name, spec in replicas.items()}
    return {"Worker": manifest["spec"]["template"]}


def container_of(pod: dict) -> dict:
    (container,) = pod["spec"]["containers"]
    return container


@pytest.mark.parametrize("name", [name for name in documented_commands() if name.endswith(".yaml")])
def test_golden_examples_in_deploy_are_what_their_commands_print(name):
    check_golden(ROOT / "deploy" / name, printed(documented_commands()[name]))


@pytest.mark.parametrize("name", GOLDEN_COMMANDS)
def test_golden_manifests(name):
    check_golden(GOLDEN / name, printed(GOLDEN_COMMANDS[name]))


@every_manifest
def test_manifests_are_valid_by_the_published_schemas(command):
    for manifest in manifests(command):
        validate(manifest)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Job", ("spec", "completionMod"), "Indexed"),
        ("Job", ("spec", "completions"), "two"),
        ("Job", ("spec", "template", "spec", "runAsUser"), 1),
        ("Service", ("spec", "ports"), {}),
        ("NetworkPolicy", ("spec", "ingres"), []),
    ],
)
def test_the_schemas_refuse_what_is_wrong(kind, path, value):
    manifest = next(part for part in manifests(EVERY_COMMAND["kubernetes/job.yaml"]) if part["kind"] == kind)
    validate(manifest)
    *folders, last = path
    inner = manifest
    for folder in folders:
        inner = inner[folder]
    inner[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(manifest)


@pytest.mark.parametrize("replica", ["chief", "Coordinator"])
def test_the_schema_refuses_an_unknown_replica_type(replica):
    manifest = manifests(EVERY_COMMAND["kubernetes/tfjob.yaml"])[-1]
    replicas = manifest["spec"]["tfReplicaSpecs"]
    replicas[replica] = replicas.pop("Chief")
    with pytest.raises(jsonschema.ValidationError):
        validate(manifest)


@every_manifest
def test_only_the_runs_own_pods_reach_its_pods(command):
    parts = manifests(command)
    policy = next(part for part in parts if part["kind"] == "NetworkPolicy")["spec"]
    own = policy["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": own}}]
    for pod in pods_of(parts[-1]).values():
        assert own.items() <= pod["metadata"]["labels"].items()
        (port,) = container_of(pod)["ports"]
        if "ports" in rule:
            assert rule["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    gpus = any("nvidia.com/gpu" in json.dumps(pod) for pod in pods_of(parts[-1]).values())
    assert ("ports" in rule) is not gpus  # NCCL takes ports of its own


@every_manifest
def test_pods_are_unprivileged_and_listen_on_their_own_address(command):
    for pod in pods_of(manifests(command)[-1]).values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        container = container_of(pod)
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["args"].count("--bind") == 1
        address = container["args"][container["args"].index("--bind") + 1]
        assert address == ("0.0.0.0" if "0.0.0.0" in command else "$(POD_IP)")
        assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container[
            "env"
        ]


def expanded(container: dict, given: dict[str, str]) -> dict[str, str]:
    """Return a container's environment as the kubelet makes it: $(NAME) of variables that stand before."""
    environment: dict[str, str] = {}
    for variable in container["env"]:
        text = variable.get("value")
        if text is None:
            text = given[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        environment[variable["name"]] = re.sub(
            r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text
        )
    return environment


@pytest.mark.parametrize("index", [0, 3])
def test_tf_config_in_a_pod_of_an_indexed_job(index):
    service, _, job = manifests(GOLDEN_COMMANDS["job-gpus.yaml"])
    spec = job["spec"]["template"]["spec"]
    annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    environment = expanded(
        container_of(job["spec"]["template"]), {annotation: str(index), "status.podIP": "10.1.2.3"}
    )
    task = parse_tf_config(environment["TF_CONFIG"])
    # The Job controller names a pod's host <job>-<index>; the headless Service makes that resolve.
    assert service["spec"]["clusterIP"] == "None"
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert task.jobs["worker"] == tuple(f"run-{worker}.run:2222" for worker in range(4))
    assert (task.job_name, task.task_index) == ("worker", index)
    assert make_tf_config(task_from_kubernetes(environment, name="run", workers=4)) == make_tf_config(task)


def operator_tf_config(tfjob: dict, replica: str, index: int) -> str:
    """Return TF_CONFIG as Kubeflow's operator makes it (genTFConfigJSONStr in its tensorflow.go)."""
    name = tfjob["metadata"]["name"]
    cluster = {}
    for kind, spec in tfjob["spec"]["tfReplicaSpecs"].items():
        containers = spec["template"]["spec"]["containers"]
        (port,) = [
            port["containerPort"]
            for container in containers
            if container["name"] == "tensorflow"
            for port in container["ports"]
            if port["name"] == "tfjob-port"
        ]
        lower = kind.lower()
        cluster[lower] = [f"{name}-{lower}-{number}.lab.svc:{port}" for number in range(spec["replicas"])]
    task = {"type": replica.lower(), "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def test_tf_config_of_an_asynchronous_tfjob():
    tfjob = manifests(GOLDEN_COMMANDS["tfjob-async-gpus.yaml"])[-1]
    task = parse_tf_config(operator_tf_config(tfjob, "PS", 1))
    assert task.name == "ps:1"
    assert task.address == "run-ps-1.lab.svc:2222"
    assert {job: task.count(job) for job in ("chief", "worker", "ps")} == {"chief": 1, "worker": 3, "ps": 2}


def test_tf_config_of_a_synchronous_tfjob():
    tfjob = manifests(GOLDEN_COMMANDS["tfjob-sync.yaml"])[-1]
    task = parse_tf_config(operator_tf_config(tfjob, "Worker", 0))
    assert task.is_chief
    assert task.num_workers == 3
    assert not task.asynchronous_by_default


def test_only_workers_of_a_tfjob_get_gpus():
    templates = pods_of(manifests(GOLDEN_COMMANDS["tfjob-async-gpus.yaml"])[-1])
    gpus = {
        name: container_of(pod)["resources"]["limits"].get("nvidia.com/gpu")
        for name, pod in templates.items()
    }
    assert gpus == {"Chief": None, "Worker": "1", "PS": None}


def test_a_jobs_failure_policy_follows_the_exit_codes():
    job = manifests(EVERY_COMMAND["kubernetes/job.yaml"])[-1]["spec"]
    rules = job["podFailurePolicy"]["rules"]

    def action(code: int) -> str:
        """Return what Kubernetes does: the first rule that fits, else the failure counts."""
        for rule in rules:
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return rule["action"]
        return "Count"

    codes = {0: "Count", 1: "FailJob", 2: "FailJob", 75: "Count", 137: "Count", 143: "Ignore"}
    assert {code: action(code) for code in codes} == codes
    assert job["backoffLimit"] == 3 * job["completions"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy allows no other
    container_names = [container["name"] for container in job["template"]["spec"]["containers"]]
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == set(
        container_names
    )


def test_a_users_dollar_stays_a_dollar():
    config = Config.from_flat({"dataset": "shapes", "job_dir": "/shared/$(HOME)"})
    options = PodOptions(name="run", image="labkit", claim="shared", workers=2)
    arguments = container_of(render_indexed_job(config, options)[-1]["spec"]["template"])["args"]
    assert arguments[arguments.index("--job-dir") + 1] == "/shared/$$(HOME)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "Run"}, "--name is 'Run'"),
        ({"name": "a" * 51}, "up to 50"),
        ({"image": "a b"}, "--image is 'a b'"),
        ({"claim": "shared_claim"}, "--claim"),
        ({"mount": "shared"}, "absolute"),
        ({"memory": "4 GB"}, "--memory is '4 GB'"),
        ({"workers": 0}, "--workers is 0; allowed: 1 or more"),
        ({"deadline_seconds": 0}, "--deadline-seconds"),
    ],
)
def test_options_that_kubernetes_would_refuse(wrong, message):
    with pytest.raises(InputError, match=re.escape(message)):
        PodOptions(**{"name": "run", "image": "labkit", "claim": "shared", "workers": 2, **wrong})


def test_trainings_that_the_pods_cannot_share():
    config = Config.from_flat({"dataset": "shapes", "train_batch_size": 16, "eval_batch_size": 16})

    def options(**values: int) -> PodOptions:
        return PodOptions(**{"name": "run", "image": "labkit", "claim": "shared", "workers": 2, **values})

    with pytest.raises(InputError, match="--train-batch-size is 16 with 6 replicas"):
        render_indexed_job(config, options(workers=3, gpus=2))
    with pytest.raises(InputError, match="synchronously"):
        render_indexed_job(config, options(ps=1))
    with pytest.raises(InputError, match="--ps is 1 with --sync"):
        render_tfjob(config.replace({"sync": True}), options(ps=1))
    with pytest.raises(InputError, match="--worker-hosts"):
        render_tfjob(config.replace({"worker_hosts": "a:1,b:1"}), options())


def test_outside_of_an_indexed_job_there_is_no_task():
    with pytest.raises(InputError, match="JOB_COMPLETION_INDEX"):
        task_from_kubernetes({}, name="run", workers=2)


def test_the_image_is_what_the_manifests_expect():
    image = (ROOT / "deploy" / "Containerfile").read_text()
    pod = container_of(manifests(EVERY_COMMAND["kubernetes/job.yaml"])[-1]["spec"]["template"])
    user = pods_of(manifests(EVERY_COMMAND["kubernetes/job.yaml"])[-1])["Worker"]["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in image
    assert "--require-hashes -r /src/requirements.lock" in image
    assert f"ENTRYPOINT {json.dumps(pod['command'])}" in image
    copied = [word for line in re.findall(r"(?m)^COPY (?!--)(.*) \S+$", image) for word in line.split()]
    shipped = (ROOT / "deploy" / "Containerfile.dockerignore").read_text().splitlines()
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in shipped
    assert pod["ports"][0]["containerPort"] == pods.PORT
