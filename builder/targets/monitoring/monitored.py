"""What is monitored: the options of a deployment file, the server's instances, and the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from ...deployment import Deployment, ServerName, Strict
from ...diagnostics import Diagnostic, nearest
from ...facts import servers as records
from ...facts.servers import Server
from ...observability import metrics
from ...observability.metrics import SERVER_JOB, Family
from ...schema import Bounds, default
from ...servers import PORT_STEP, Host, Port, RenderContext, RenderedServer
from .. import disaggregated
from ..kubernetes.options import TARGET as KUBERNETES
from ..kubernetes.options import ObjectName

Address = Annotated[str, Bounds(pattern=r"^(\[[0-9A-Fa-f:]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}$")]
Url = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9._~:/?&=%+-]+$", max_length=500)]
Days = Annotated[int, Bounds(ge=1, le=365)]


class MonitoringOptions(Strict):
    """What is monitored, and by what.

    `server` is the target: where it is not given, the one that another target runs, else the first
    of the deployment. It runs on `hosts`, or where its own options say. Of a service of two sides
    these are the decode servers; its prefill servers run on `prefill_hosts`, its `router` listens
    at an address.

    `blackbox` is where a blackbox exporter listens, which asks for readiness and certificates, and
    `dcgm_port` the port of a DCGM exporter on each host; `null` leaves out what they measure.

    `availability` is the share of requests to be served, `acceptance_floor` the least share of
    draft tokens to be accepted, `certificate_days` how early to renew. Alerts link to
    `runbook_url`. For a rehearsal, `speed` divides all windows and waiting times.

    Where Kubernetes runs the server and no `hosts` are given, Prometheus finds its pods in
    `namespace`, as `service_account` of the namespace of monitoring. With `operator`, there are
    objects of Prometheus Operator too.
    """

    server: ServerName | None = None
    hosts: list[Host] = default(list)
    prefill_hosts: list[Host] = default(list)
    router: Address | None = None
    blackbox: Address | None = "127.0.0.1:9115"
    dcgm_port: Port | None = 9400
    alertmanager: Address = "127.0.0.1:9093"
    availability: Annotated[float, Bounds(gt=0, lt=1)] | None = None
    acceptance_floor: Annotated[float, Bounds(gt=0, lt=1)] | None = None
    certificate_days: Days = 21
    runbook_url: Url = "handoff/runbook.html"
    speed: Annotated[int, Bounds(ge=1, le=60)] = 1
    namespace: ObjectName = "default"
    service_account: ObjectName = "prometheus"
    operator: bool = False


TARGET = "monitoring"
ONLY_METRICS = f"pods are asked for metrics only; give targets.{TARGET}.hosts to ask exporters"
# Servers bring their metrics up to date once a second, and no rate has less than two values.
_SHORTEST_WINDOW_S = 5
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Instance:
    """One server process: the address by which it is known, and its ports by protocol."""

    host: str
    ports: Mapping[str, int]

    def address(self, protocol: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.ports[protocol]}"


@dataclass(frozen=True)
class MonitoredServer:
    context: RenderContext
    options: MonitoringOptions

    @property
    def deployment(self) -> Deployment:
        return self.context.deployment

    @cached_property
    def server(self) -> str:
        return _server(self.deployment, self.options)

    @property
    def rendered(self) -> RenderedServer:
        return self.context.servers[self.server]

    @property
    def record(self) -> Server:
        return self.rendered.record

    @property
    def front(self) -> str:
        """The protocol by which an instance is known."""
        return str(self.rendered.entry["ready"]["port"])

    @property
    def instances(self) -> list[Instance]:
        return _instances(self.context, self.server, self.options.hosts)

    @property
    def finds_pods(self) -> bool:
        """Whether Prometheus asks Kubernetes for the server's pods; else it asks hosts."""
        targets = self.deployment.targets
        own = KUBERNETES in targets and targets[KUBERNETES].get("server") in (None, self.server)
        return own and not self.options.hosts

    @property
    def prefill(self) -> list[Instance]:
        """The servers of the other side whose hosts are known."""
        other = self.context.prefill
        hosts = self.options.prefill_hosts
        return _instances(other, self.server, hosts) if other and hosts else []

    @property
    def router(self) -> list[Instance]:
        """The router of both sides, if its address is known."""
        if self.options.router is None:
            return []
        host, _, port = self.options.router.rpartition(":")
        return [Instance(host.strip("[]"), {self.front: int(port)})]

    @property
    def exposition(self) -> str | None:
        """The protocol at whose port the server shows metrics, if it shows any."""
        protocol = self.record.metrics.protocol
        is_on = self.context.exports_metrics(self.rendered) and protocol in self.rendered.ports
        return protocol if is_on and self.can_export else None

    @cached_property
    def can_export(self) -> dict[str, Family]:
        """What the release can export, whatever the options say."""
        return metrics.of_server(self.server, self.context.release)

    @property
    def metric_names(self) -> dict[str, str]:
        """The server's metrics by the words of signals."""
        return metrics.names(self.server, self.context.release.metric_prefix)

    @cached_property
    def families(self) -> dict[str, Family]:
        """What is exported, by the server as it is set and by the exporters that are asked."""
        own = self.can_export if self.exposition else {}
        given = self.context.engine.options
        return {
            **metrics.of_jobs(self.jobs),
            **{name: row for name, row in own.items() if not row.needs or given.get(row.needs)},
        }

    @cached_property
    def jobs(self) -> tuple[str, ...]:
        probes = self.options.blackbox is not None and not self.finds_pods
        can = {
            SERVER_JOB: self.exposition is not None,
            "ready": probes and self.readiness is not None,
            "certificate": probes and self.has_tls,
            "gpu": self.options.dcgm_port is not None and not self.finds_pods,
        }
        return tuple(job for job, asked in can.items() if asked)

    @property
    def has_tls(self) -> bool:
        return self.rendered.tls is not None

    @property
    def readiness(self) -> str | None:
        """How an exporter asks for readiness: `http`, `grpc`, or not at all.

        A gRPC server that wants a client's certificate would refuse it.
        """
        if self.front == "grpc" and "SERVE_TLS_CLIENT_CA" in self.rendered.environment:
            return None
        return self.front

    def absent(self) -> dict[str, str]:
        """Why jobs and metrics are not there."""
        unprobed = "" if self.options.blackbox else f"targets.{TARGET}.blackbox is off"
        reasons = {
            SERVER_JOB: self._why_no_metrics(),
            "ready": unprobed or "readiness asks for a client's certificate",
            "certificate": unprobed or "the server has no TLS",
            "gpu": f"targets.{TARGET}.dcgm_port is off",
        }
        if self.finds_pods:
            reasons |= dict.fromkeys(("ready", "certificate", "gpu"), ONLY_METRICS)
        for name, family in self.can_export.items():
            why = f"{family.needs} is not set" if self.exposition else self._why_no_metrics()
            reasons |= dict.fromkeys((name, *family.samples), why)
        for name in metrics.of_jobs(metrics.jobs()):
            job = metrics.job_of(name)
            if job in reasons:
                reasons[name] = reasons[job]
        return reasons

    def _why_no_metrics(self) -> str:
        if not self.can_export:
            return f"{self.server} of release {self.context.release.name} has no known metrics"
        option = self.record.metrics.needs
        return f"{option} is not set" if option else f"targets.{self.server}.metrics is off"

    def seconds(self, text: str, least_s: int = 0) -> int:
        """A time of the data as this monitoring has it."""
        full = int(text[:-1]) * _UNITS[text[-1]]
        return max(-(-full // self.options.speed), least_s)

    def duration(self, text: str, least_s: int = 0) -> str:
        """Likewise, in the words of Prometheus."""
        seconds = self.seconds(text, least_s)
        size, unit = max((size, unit) for unit, size in _UNITS.items() if seconds % size == 0)
        return f"{seconds // size}{unit}" if seconds else "0s"

    def window(self, text: str) -> str:
        """Likewise, of a time to look back: never so short that it holds no two values."""
        return self.duration(text, _SHORTEST_WINDOW_S)


def _instances(context: RenderContext, server: str, hosts: list[str]) -> list[Instance]:
    rendered = context.servers[server]
    found: list[Instance] = []
    for host in hosts or [rendered.local_host]:
        for index in range(context.deployment.instances):
            ports = {name: port + PORT_STEP * index for name, port in rendered.ports.items()}
            found.append(Instance(host, ports))
    return found


def diagnostics(deployment: Deployment) -> Iterator[Diagnostic]:
    """Why a deployment cannot be monitored."""
    servers = [name for name in records.names() if name in deployment.targets]
    given = deployment.targets[TARGET].get("server")
    if not servers:
        remedy = f"add {' or '.join(records.names())}"
        yield Diagnostic(f"targets.{TARGET}", "has no server to watch", remedy)
    elif given is not None and given not in servers:
        what = f"{given} is not a target of the deployment"
        yield Diagnostic(f"targets.{TARGET}.server", what, nearest(given, servers))
    if not any(disaggregated.named(deployment.targets, name) for name in disaggregated.TARGETS):
        for option in ("prefill_hosts", "router"):
            if deployment.targets[TARGET].get(option):
                what = "is given, and the deployment names no prefill servers"
                remedy = "remove it, or name them by prefill of slurm or kubernetes"
                yield Diagnostic(f"targets.{TARGET}.{option}", what, remedy)


def warnings(context: RenderContext, options: MonitoringOptions) -> Iterator[Diagnostic]:
    """What of a service is not watched."""
    monitored = MonitoredServer(context, options)
    unseen = {"prefill_hosts": "the prefill servers", "router": "the router"}
    for option, name in unseen.items():
        if context.prefill and not monitored.finds_pods and not getattr(options, option):
            what = f"is not given: {name} of this service will not be watched"
            fix = "give the hosts" if option == "prefill_hosts" else "give its host:port"
            yield Diagnostic(f"targets.{TARGET}.{option}", what, fix, severity="warning")
    if not monitored.jobs:
        what = f"has nothing to ask: {monitored.absent()[SERVER_JOB]}"
        fix = f"set it, or give targets.{TARGET}.hosts"
        yield Diagnostic(f"targets.{TARGET}", what, fix, severity="warning")
    if context.prefill and options.router and "ready" not in monitored.jobs:
        what = f"is not watched, since it is only probed: {monitored.absent()['ready']}"
        fix = "" if options.blackbox else f"give targets.{TARGET}.blackbox its host:port"
        yield Diagnostic(f"targets.{TARGET}.router", what, fix, severity="warning")


def _server(deployment: Deployment, options: MonitoringOptions) -> str:
    others = (given.get("server") for given in deployment.targets.values())
    wanted = [options.server, *others, *records.names()]
    return next(name for name in wanted if name in deployment.targets)
