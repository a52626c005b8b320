"""Make ``manifests.json`` from the schemas that Kubernetes publishes.

    python -m venv /tmp/schemas
    /tmp/schemas/bin/pip install --no-deps kubernetes-validate==1.37.0
    python tests/cluster/schemas/renew.py /tmp/schemas/lib/python3.11/site-packages

kubernetes-validate holds the OpenAPI definitions of Kubernetes as strict JSON schemas (unknown fields are
errors, as with ``kubectl apply --validate=strict``); Apache License 2.0. Only the definitions that the
manifests refer to are kept, without the descriptions.
"""

import json
import sys
from pathlib import Path
from typing import Any

KUBERNETES = "1.31.0"  # the first in which podFailurePolicy is stable
KINDS = ("job-batch-v1", "service-v1", "networkpolicy-networking-v1")


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
    needed: list[str] = []
    made: dict[str, Any] = {}
    for name in KINDS:
        schema = stripped(json.loads((folder / f"{name}.json").read_text()), needed)
        made[schema["properties"]["kind"]["enum"][0]] = {**schema, "required": ["apiVersion", "kind", "spec"]}
    while needed:
        name = needed.pop()
        if name not in made:
            made[name] = stripped(published[name], needed)
    return made


def main() -> None:
    packages = Path(sys.argv[1])
    comment = f"Kubernetes {KUBERNETES} (kubernetes-validate), Apache License 2.0; made by renew.py"
    document = {"$comment": comment, "$defs": kubernetes(packages)}
    target = Path(__file__).with_name("manifests.json")
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
