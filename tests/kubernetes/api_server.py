"""A stand-in for the API server of a cluster, as far as kubectl needs one; it is not a Kubernetes.

It refuses what the schemas of its kinds do not know. It fills in no defaults, admits everybody, has
one namespace and, of all other rules for objects, those of `_broken`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.kubernetes import patches, schemas
from tests.kubernetes.object_store import Object, Objects

MINOR = schemas.MINORS[-1]
KINDS = {
    "v1": {"configmaps": "ConfigMap", "events": "Event", "pods": "Pod", "services": "Service"}
    | {"persistentvolumeclaims": "PersistentVolumeClaim", "persistentvolumes": "PersistentVolume"},
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "leaderworkerset.x-k8s.io/v1": {"leaderworkersets": "LeaderWorkerSet"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "resource.nvidia.com/v1beta1": {"computedomains": "ComputeDomain"},
    "serving.kserve.io/v1alpha1": {"servingruntimes": "ServingRuntime"},
    "serving.kserve.io/v1beta1": {"inferenceservices": "InferenceService"},
}
NAMESPACE = "default"
CLUSTER_WIDE = ("persistentvolumes",)
PATH = re.compile(
    r"/apis?/(?P<version>v1|[^/]+/v[^/]+)(?:/namespaces/default)?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
# Source: kubernetes/apimachinery, pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
ANNOTATION_BYTES = 256 * 1024
JSON = "application/json"
DISCOVERY = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}
POD_COLUMNS = ("Name", "Ready", "Status", "Restarts", "Node")
# How long a client that watches is not looked after when nothing happens.
WATCH_PAUSE_S = 0.5


class Refused(Exception):
    """What a client is told, with the status of HTTP and Kubernetes' word for it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@contextmanager
def serving(objects: Objects, logs: Mapping[str, Path]) -> Iterator[str]:
    """The text of a kubeconfig for these objects; `logs` are the files of pods by name."""
    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Request, objects, logs, ended))
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield _kubeconfig(f"http://127.0.0.1:{server.server_port}")
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _kubeconfig(url: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": ""}}],
            "current-context": "test",
        }
    )


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(
        self, objects: Objects, logs: Mapping[str, Path], ended: threading.Event, *connection: Any
    ) -> None:
        self.objects, self.logs, self.ended = objects, logs, ended
        super().__init__(*connection)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.query = dict(parse_qsl(url.query))
        try:
            self._answer(url.path)
        except Refused as error:
            words = {"status": "Failure", "message": str(error), "reason": error.reason}
            self._send({**_typed("v1", "Status"), **words, "code": error.code}, code=error.code)

    do_POST = do_PATCH = do_DELETE = do_GET

    def _send(self, answer: object, media: str = JSON, code: int = 200) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, path: str) -> None:
        if path in ("/api", "/apis"):
            return self._send(_discovery(is_core=path == "/api"), DISCOVERY)
        if path == "/openapi/v3":
            folders = map(_folder, KINDS)
            index = {folder: {"serverRelativeURL": f"{path}/{folder}"} for folder in folders}
            return self._send({"paths": index})
        if path.startswith("/openapi/v3/"):
            return self._send(_openapi(path.removeprefix("/openapi/v3/")))
        match = PATH.fullmatch(path)
        kind = match and KINDS.get(match["version"], {}).get(match["plural"])
        if match is None or kind is None:
            raise Refused(404, "NotFound", f"{path} is nothing that this server knows")
        if "dryRun" in self.query:
            raise Refused(400, "BadRequest", "this server knows no dry runs")
        self._object(match["plural"], _typed(match["version"], kind), match["name"], match["log"])
        return None

    def _object(self, plural: str, typed: Object, name: str | None, log: str | None) -> None:
        key = f"{plural}/{name}"
        match self.command, name, log:
            case "GET", None, _ if "watch" in self.query:
                self._watch(plural, typed)
            case "GET", None, _:
                self._list(plural, typed)
            case "POST", None, _:
                self._send(self._create(plural, typed), code=201)
            case "GET", str(), str():
                self._log(str(name))
            case "GET", str(), None:
                self._send(_there(self.objects.get(key), key))
            case "PATCH", str(), None:
                self._send(_there(self.objects.change(key, self._patched), key))
            case "DELETE", str(), None:
                if json.loads(self.body)["propagationPolicy"] != "Background":
                    raise Refused(400, "BadRequest", "this server deletes in the background alone")
                self._send(_there(self.objects.delete(key), key))
            case _:
                raise Refused(405, "MethodNotAllowed", f"{self.command} {self.path}")

    def _create(self, plural: str, typed: Object) -> Object:
        new = {**json.loads(self.body), **typed}
        if plural not in CLUSTER_WIDE:
            new["metadata"]["namespace"] = NAMESPACE
        _check(new, {})
        created = self.objects.create(f"{plural}/{new['metadata']['name']}", new)
        if created is None:
            raise Refused(409, "AlreadyExists", f"{plural} {new['metadata']['name']}")
        return created

    def _patched(self, old: Object) -> Object:
        patch = json.loads(self.body)
        match self.headers["Content-Type"]:
            case "application/merge-patch+json":
                new: Object = patches.merge(old, patch)
            case "application/strategic-merge-patch+json":
                field = partial(schemas.field, MINOR)
                new = patches.strategic(old, patch, schemas.schema(MINOR, old), field)
            case other:
                raise Refused(415, "UnsupportedMediaType", f"{other} is not a patch known here")
        _check(new, old)
        return new

    def _chosen(self, found: Object) -> bool:
        """Whether the selectors of the request mean an object; they know no more than `=`."""
        labels = found["metadata"].get("labels", {})
        return all(labels.get(k) == v for k, v in _pairs(self.query.get("labelSelector"))) and all(
            str(_at(found, k)) == v for k, v in _pairs(self.query.get("fieldSelector"))
        )

    def _list(self, plural: str, typed: Object) -> None:
        version, found = self.objects.of(plural)
        items = [row for row in found if self._chosen(row)]
        whole = {"metadata": {"resourceVersion": str(version)}}
        if plural == "pods" and "as=Table" in self.headers.get("Accept", ""):
            return self._send({**_typed("meta.k8s.io/v1", "Table"), **whole, **_pod_table(items)})
        list_type = _typed(typed["apiVersion"], f"{typed['kind']}List")
        return self._send({**list_type, **whole, "items": items})

    def _log(self, name: str) -> None:
        if name not in self.logs or "follow" in self.query:
            raise Refused(400, "BadRequest", f"no log of {name}, or none to be followed")
        lines = self.logs[name].read_bytes().splitlines(keepends=True)
        self._send(b"".join(lines[-int(self.query.get("tailLines", len(lines))) :]), "text/plain")

    def _watch(self, plural: str, typed: Object) -> None:
        self.send_response(200)
        self.send_header("Content-Type", JSON)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        since = int(self.query.get("resourceVersion") or 0)
        try:
            if "sendInitialEvents" in self.query or not since:
                since, found = self.objects.of(plural)
                self._tell(("ADDED", row) for row in found if self._chosen(row))
            if "sendInitialEvents" in self.query:
                own = {"resourceVersion": str(since), "annotations": INITIAL_EVENTS_END}
                self._tell([("BOOKMARK", {**typed, "metadata": own})])
            while not self.ended.is_set():
                events = self.objects.wait(since, WATCH_PAUSE_S)
                since += len(events)
                self._tell(
                    (what, row)
                    for what, key, row in events
                    if key.startswith(f"{plural}/") and self._chosen(row)
                )
        except ConnectionError:
            self.close_connection = True

    def _tell(self, events: Iterator[tuple[str, Object]] | list[tuple[str, Object]]) -> None:
        for what, found in events:
            line = json.dumps({"type": what, "object": found}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


def _check(new: Object, old: Object) -> None:
    if faults := schemas.faults(new, MINOR):
        raise Refused(400, "BadRequest", f"strict decoding error: {'; '.join(faults)}")
    if broken := list(_broken(new, old)):
        raise Refused(422, "Invalid", f"{new['metadata']['name']} is invalid: {'; '.join(broken)}")


def _broken(new: Object, old: Object) -> Iterator[str]:
    """Rules beside those of single fields, as far as a bundle could break them."""
    annotations = new["metadata"].get("annotations", {})
    if sum(len(f"{name}{text}".encode()) for name, text in annotations.items()) > ANNOTATION_BYTES:
        yield f"metadata.annotations: Too long: must have at most {ANNOTATION_BYTES} bytes"
    if old.get("immutable") and any(old.get(key) != new.get(key) for key in ("data", "binaryData")):
        yield "data: Forbidden: field is immutable when `immutable` is set"
    selector = "spec.selector"
    if old and new["kind"] == "Deployment" and _at(old, selector) != _at(new, selector):
        yield f"{selector}: Invalid value: field is immutable"


def _typed(version: str, kind: str) -> Object:
    return {"apiVersion": version, "kind": kind}


def _there(found: Object | None, key: str) -> Object:
    if found is None:
        raise Refused(404, "NotFound", f"{key} not found")
    return found


def _pairs(selector: str | None) -> Iterator[tuple[str, str]]:
    for term in (selector or "").split(",") if selector else ():
        name, is_equal, value = term.partition("=")
        if not is_equal or name.endswith("!"):
            raise Refused(400, "BadRequest", f"{term} is not a selector known here")
        yield name, value.removeprefix("=")


def _at(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = (found or {}).get(name)
    return found


def _pod_table(pods: list[Object]) -> Object:
    """What `kubectl get pods` shows, which the server decides."""
    rows = []
    for pod in pods:
        [status] = _at(pod, "status.containerStatuses") or [{}]
        ended = "deletionTimestamp" in pod["metadata"]
        phase = "Terminating" if ended else _at(pod, "status.phase") or "Pending"
        ready = f"{int(status.get('ready', False))}/1"
        cells = [pod["metadata"]["name"], ready, phase, 0, _at(pod, "spec.nodeName") or "<none>"]
        rows.append({"cells": cells, "object": pod})
    columns = [{"name": name, "type": "string", "priority": 0} for name in POD_COLUMNS]
    return {"columnDefinitions": columns, "rows": rows}


def _discovery(is_core: bool) -> Object:
    """The kinds by group, in the form that is one answer for all of them."""
    groups: dict[str, list[Object]] = {}
    for full, kinds in KINDS.items():
        group, _, version = full.rpartition("/")
        if is_core == (not group):
            rows = [_resource(group, version, plural, kind) for plural, kind in kinds.items()]
            groups.setdefault(group, []).append({"version": version, "resources": rows})
    items = [{"metadata": {"name": name}, "versions": rows} for name, rows in groups.items()]
    return {**_typed("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList"), "items": items}


def _resource(group: str, version: str, plural: str, kind: str) -> Object:
    return {
        "resource": plural,
        "singularResource": kind.lower(),
        "responseKind": {"group": group, "version": version, "kind": kind},
        "scope": "Cluster" if plural in CLUSTER_WIDE else "Namespaced",
        "verbs": ["create", "delete", "get", "list", "patch", "watch"],
    }


def _folder(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


def _openapi(folder: str) -> Object:
    """No more than what kubectl asks before it leaves the check of all fields to the server."""
    [version] = [version for version in KINDS if _folder(version) == folder]
    group, _, last = version.rpartition("/")
    paths = {}
    for plural, kind in KINDS[version].items():
        named = {"group": group, "version": last, "kind": kind}
        parameters = [{"name": "fieldValidation", "in": "query"}]
        patch = {"parameters": parameters, "x-kubernetes-group-version-kind": named}
        paths[f"/{folder}/{plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "test", "version": MINOR}, "paths": paths}
