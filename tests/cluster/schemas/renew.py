"""Make ``manifests.json`` from the schemas that Kubernetes and Kubeflow publish.

    python -m venv /tmp/schemas
    /tmp/schemas/bin/pip install --no-deps kubernetes-validate==1.37.0 kubeflow-training==1.9.4
    python tests/cluster/schemas/renew.py /tmp/schemas/lib/python3.11/site-packages

kubernetes-validate holds the OpenAPI definitions of Kubernetes as strict JSON schemas (unknown fields are
errors, as with ``kubectl apply --validate=strict``). Kubeflow publishes TFJob in Go and, generated from it,
as the models of its Python package; types and required fields are read from these, allowed words from
``pkg/apis/kubeflow.org/v1`` of kubeflow/training-operator. Both: Apache License 2.0.
Only what the manifests refer to is kept, without the descriptions.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

KUBERNETES = "1.31.0"  # the first in which podFailurePolicy is stable
KINDS = ("job-batch-v1", "service-v1", "networkpolicy-networking-v1")
POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
TFJOB_MODELS = ("tf_job", "tf_job_spec", "run_policy", "scheduling_policy", "replica_spec")
WORDS = {
    "apiVersion": ["kubeflow.org/v1"],
    "kind": ["TFJob"],
    "cleanPodPolicy": ["All", "Running", "None"],
    "restartPolicy": ["Always", "OnFailure", "Never", "ExitCode"],
    "successPolicy": ["", "AllWorkers"],
}
REPLICA_TYPES = ["Chief", "Master", "Worker", "PS", "Evaluator"]


def stripped(schema: Any, needed: list[str]) -> Any:
    """Return a schema without descriptions, references made local; note what it refers to."""
    if isinstance(schema, list):
        return [stripped(item, needed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "$ref":
            name = value.rpartition("/")[2]
            needed.append(name)
            kept[key] = f"#/$defs/{name}"
        # A field may be called description too: then its value is a schema. An $id would rebase references.
        elif not (key in ("description", "$id", "$schema") and isinstance(value, str)):
            kept[key] = stripped(value, needed)
    return kept


def kubernetes(packages: Path) -> dict[str, Any]:
    folder = packages / "kubernetes_validate/kubernetes-json-schema" / f"v{KUBERNETES}-local-strict"
    published = json.loads((folder / "_definitions.json").read_text())["$defs"]
    needed = [POD_TEMPLATE, OBJECT_META, QUANTITY]
    made: dict[str, Any] = {}
    for name in KINDS:
        schema = stripped(json.loads((folder / f"{name}.json").read_text()), needed)
        made[schema["properties"]["kind"]["enum"][0]] = {**schema, "required": ["apiVersion", "kind", "spec"]}
    while needed:
        name = needed.pop()
        if name not in made:
            made[name] = stripped(published[name], needed)
    return made


def tfjob(packages: Path) -> dict[str, Any]:
    folder = packages / "kubeflow/training/models"
    made = {}
    for module in TFJOB_MODELS:
        source = (folder / f"kubeflow_org_v1_{module}.py").read_text()
        owner = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        tables = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in owner.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        }
        names = tables["attribute_map"]
        made[owner.name] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                names[field]: schema_of(kind, names[field])
                for field, kind in tables["openapi_types"].items()
                if field != "status"
            },
            "required": [
                shown for field, shown in names.items() if f"for `{field}`, must not be `None`" in source
            ],
        }
    made["KubeflowOrgV1TFJob"]["required"] = ["apiVersion", "kind", "metadata", "spec"]
    specs = made["KubeflowOrgV1TFJobSpec"]["properties"]["tfReplicaSpecs"]
    specs["propertyNames"] = {"enum": REPLICA_TYPES}
    return {"TFJob": made.pop("KubeflowOrgV1TFJob"), **made}


def schema_of(kind: str, field: str) -> dict[str, Any]:
    plain = {"str": "string", "int": "integer", "bool": "boolean"}
    if kind in plain:
        return {"type": plain[kind], **({"enum": WORDS[field]} if field in WORDS else {})}
    if kind.startswith("dict(str, "):
        values = schema_of(kind.removeprefix("dict(str, ").removesuffix(")"), field)
        return {"type": "object", "additionalProperties": values}
    local = {"V1ObjectMeta": OBJECT_META, "V1PodTemplateSpec": POD_TEMPLATE, "Quantity": QUANTITY}
    return {"$ref": f"#/$defs/{local.get(kind, kind)}"}


def main() -> None:
    packages = Path(sys.argv[1])
    comment = (
        f"Kubernetes {KUBERNETES} (kubernetes-validate) and Kubeflow Training Operator v1 "
        "(kubeflow-training), Apache License 2.0; made by renew.py beside this file"
    )
    document = {"$comment": comment, "$defs": {**kubernetes(packages), **tfjob(packages)}}
    target = Path(__file__).with_name("manifests.json")
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
