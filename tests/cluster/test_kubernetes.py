"""Manifests: valid by the published schemas, closed to others, with a role for every pod."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest
import yaml

from labkit.cluster import kubernetes
from labkit.cluster.kubernetes import PodOptions, render_indexed_job, task_from_kubernetes
from labkit.config import Config
from labkit.distributed.task import ClusterTask, make_tf_config
from labkit.errors import InputError
from tests.cluster.examples import GOLDEN, ROOT, check_golden, documented_commands, printed
from tests.commands.in_process import refused

SCHEMAS = json.loads((GOLDEN.parent / "schemas" / "manifests.json").read_text())
COMMON = "labkit cluster kubernetes --name run --image registry.example/labkit:0.1.0 --claim shared.claim"
GOLDEN_COMMANDS = {
    "job-gpus.yaml": f"{COMMON} --workers 4 --gpus 2 --max-restarts 5 --deadline-seconds 86400 "
    "--mount /mnt/lab -- train --sync --num-layers 56 --eval-batch-size 80 --variable-strategy GPU "
    "--job-dir /mnt/lab/runs/deep --rendezvous-seconds 60",
    "job-async.yaml": f"{COMMON} --workers 3 --ps 2 --grace-seconds 30 -- train "
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


def container_of(job: dict) -> dict:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


@every_manifest
def test_golden_manifests_are_valid_and_what_their_commands_print(command):
    name = next(name for name, text in EVERY_COMMAND.items() if text == command)
    check_golden((GOLDEN if name in GOLDEN_COMMANDS else ROOT / "deploy") / name, printed(command))
    for manifest in manifests(command):
        validate(manifest)


def test_a_search_is_a_job_of_pods_that_need_no_service():
    options = "--name s --image labkit:1 --claim shared --workers 3"
    words = "search --join /shared/it --space lr=0.1,0.2"
    (job,) = manifests(f"labkit cluster kubernetes {options} -- {words}")
    validate(job)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    assert container_of(job)["args"] == words.split()


def test_a_search_that_each_pod_would_make_alone_is_refused():
    options = "--name s --image labkit:1 --claim shared --workers 3"
    command = f"cluster kubernetes {options} -- search --join it --space lr=0.1,0.2"
    message = refused(*command.split())
    assert "--join is 'it'; allowed: a folder below /shared" in message


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


@every_manifest
def test_only_the_runs_own_pods_reach_its_pods(command):
    parts = manifests(command)
    policy = next(part for part in parts if part["kind"] == "NetworkPolicy")["spec"]
    own = policy["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": own}}]
    assert own.items() <= parts[-1]["spec"]["template"]["metadata"]["labels"].items()
    (port,) = container_of(parts[-1])["ports"]
    if "ports" in rule:
        assert rule["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    gpus = "nvidia.com/gpu" in container_of(parts[-1])["resources"]["limits"]
    assert ("ports" in rule) is not gpus  # NCCL takes ports of its own


@every_manifest
def test_pods_are_unprivileged_and_listen_on_their_own_address(command):
    job = manifests(command)[-1]
    pod, container = job["spec"]["template"]["spec"], container_of(job)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["args"].count("--bind") == 1
    address = container["args"][container["args"].index("--bind") + 1]
    assert address == ("0.0.0.0" if "0.0.0.0" in command else "$(POD_IP)")
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert pod_ip in container["env"]


def task_of_pod(job: dict, index: int) -> ClusterTask:
    """Return the task of a pod, as its command finds it: the Job controller sets the index."""
    arguments = container_of(job)["args"]
    command, training = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    assert command[:2] == ["cluster", "kubernetes-task"] and training[0] == "train"
    values = dict(zip(command[2::2], command[3::2], strict=True))
    return task_from_kubernetes(
        {"JOB_COMPLETION_INDEX": str(index)},
        name=values["--name"],
        workers=int(values["--workers"]),
        ps=int(values.get("--ps", 0)),
    )


@pytest.mark.parametrize("index", [0, 3])
def test_every_pod_of_a_synchronous_job_is_a_worker(index):
    service, _, job = manifests(GOLDEN_COMMANDS["job-gpus.yaml"])
    # The Job controller names a pod's host <job>-<index>; the headless Service makes that resolve.
    assert service["spec"]["clusterIP"] == "None"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    task = task_of_pod(job, index)
    assert task.jobs == {"worker": tuple(f"run-{worker}.run:2222" for worker in range(4))}
    assert (task.job_name, task.task_index) == ("worker", index)


def test_every_pod_of_an_asynchronous_job_has_its_own_role():
    job = manifests(GOLDEN_COMMANDS["job-async.yaml"])[-1]
    tasks = [task_of_pod(job, index) for index in range(job["spec"]["completions"])]
    assert [task.name for task in tasks] == ["chief:0", "worker:0", "worker:1", "worker:2", "ps:0", "ps:1"]
    assert [task.address for task in tasks] == [f"run-{index}.run:2222" for index in range(6)]
    assert len({make_tf_config(replace(task, job_name="chief", task_index=0)) for task in tasks}) == 1
    assert tasks[0].asynchronous_by_default and job["spec"]["parallelism"] == 6


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


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({}, {"workers": 3, "gpus": 2}, "--train-batch-size is 16 with 6 replicas"),
        ({"sync": True}, {"ps": 1}, "--ps is 1 with --sync"),
        ({"worker_hosts": "a:1,b:1"}, {}, "--worker-hosts"),
        ({"job_dir": "runs/mine"}, {}, "--job-dir is 'runs/mine'; allowed: a folder below /shared"),
        ({"job_dir": "/shared/mine"}, {"mount": "/mnt"}, "below /mnt, where the pods mount the claim"),
        ({"job_dir": "/shared/$(HOME)"}, {}, None),
    ],
)
def test_trainings_that_the_pods_cannot_share_and_one_whose_dollar_stays_a_dollar(values, options, words):
    config = Config.from_flat({"dataset": "shapes", "train_batch_size": 16, "eval_batch_size": 16, **values})
    pods_of = PodOptions(**{"name": "run", "image": "labkit", "claim": "shared", "workers": 2, **options})
    if words is None:
        arguments = container_of(render_indexed_job(config, pods_of)[-1])["args"]
        assert arguments[arguments.index("--job-dir") + 1] == "/shared/$$(HOME)"
        return
    with pytest.raises(InputError, match=words):
        render_indexed_job(config, pods_of)


@pytest.mark.parametrize(
    ("environment", "message"),
    [({}, "JOB_COMPLETION_INDEX is not set"), ({"JOB_COMPLETION_INDEX": "4"}, "is 4, .* allowed: 0 to 3")],
)
def test_outside_of_an_indexed_job_there_is_no_task(environment, message):
    with pytest.raises(InputError, match=message):
        task_from_kubernetes(environment, name="run", workers=2, ps=1)


def test_the_image_is_what_the_manifests_expect():
    image = (ROOT / "deploy" / "Containerfile").read_text()
    job = manifests(EVERY_COMMAND["kubernetes/job.yaml"])[-1]
    pod, user = container_of(job), job["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in image
    assert "--require-hashes --only-binary :all: -r /src/requirements.lock" in image
    assert f"ENTRYPOINT {json.dumps(pod['command'])}" in image
    copied = [word for line in re.findall(r"(?m)^COPY (?!--)(.*) \S+$", image) for word in line.split()]
    shipped = (ROOT / "deploy" / "Containerfile.dockerignore").read_text().splitlines()
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in shipped
    assert pod["ports"][0]["containerPort"] == kubernetes.PORT
