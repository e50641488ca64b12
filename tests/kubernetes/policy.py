"""The pod security standard "restricted", rule by rule.

Source: kubernetes/website, content/en/docs/concepts/security/pod-security-standards.md: all rules
of its profiles "baseline" and "restricted", as they hold for pods of Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Spec = Mapping[str, Any]

VOLUMES = frozenset(
    (
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    )
)
SYSCTLS = frozenset(
    (
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies"),
        *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"),
        *("net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time"),
        *("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
        *("net.ipv4.tcp_keepalive_probes",),
    )
)
PROFILES = frozenset(("RuntimeDefault", "Localhost"))
SELINUX_TYPES = frozenset((None, "", "container_t", "container_init_t", "container_kvm_t"))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about pods; `holds` is asked of the whole pod."""

    name: str
    holds: Callable[[Spec], bool]


def violations(spec: Spec) -> list[str]:
    return [rule.name for rule in RULES if not rule.holds(spec)]


def containers(spec: Spec) -> Iterator[Spec]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind, [])


def contexts(spec: Spec) -> list[Spec]:
    """The security context of the pod, and of each container."""
    return [spec.get("securityContext", {}), *own_contexts(spec)]


def own_contexts(spec: Spec) -> list[Spec]:
    return [row.get("securityContext", {}) for row in containers(spec)]


def handlers(spec: Spec) -> Iterator[Spec]:
    """Every probe and hook of every container."""
    for container in containers(spec):
        probes = (
            container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")
        )
        yield from probes
        yield from container.get("lifecycle", {}).values()


def _effective(spec: Spec, field: str) -> list[Any]:
    """The field of each container, which is that of the pod where it has none."""
    pod = spec.get("securityContext", {}).get(field)
    return [own.get(field, pod) for own in own_contexts(spec)]


def _no_host_address(spec: Spec) -> bool:
    asked = (
        handler.get(kind, {}) for handler in handlers(spec) for kind in ("httpGet", "tcpSocket")
    )
    return not any(probe.get("host") for probe in asked)


RULES = (
    Rule("host process", lambda spec: not any(
        own.get("windowsOptions", {}).get("hostProcess") for own in contexts(spec))),
    Rule("host namespaces", lambda spec: not any(
        spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))),
    Rule("privileged", lambda spec: not any(own.get("privileged") for own in own_contexts(spec))),
    Rule("host path", lambda spec: not any("hostPath" in v for v in spec.get("volumes", []))),
    Rule("host ports", lambda spec: not any(
        port.get("hostPort") for row in containers(spec) for port in row.get("ports", []))),
    Rule("host of probes", _no_host_address),
    Rule("app armor", lambda spec: all(
        own.get("appArmorProfile", {}).get("type", "RuntimeDefault") in PROFILES
        for own in contexts(spec))),
    Rule("selinux", lambda spec: all(
        own.get("seLinuxOptions", {}).get("type") in SELINUX_TYPES
        and not {"user", "role"} & set(own.get("seLinuxOptions", {}))
        for own in contexts(spec))),
    Rule("proc mount", lambda spec: all(
        own.get("procMount", "Default") == "Default" for own in own_contexts(spec))),
    Rule("sysctls", lambda spec: all(
        row["name"] in SYSCTLS for row in spec.get("securityContext", {}).get("sysctls", []))),
    Rule("volume types", lambda spec: all(
        set(volume) - {"name"} <= VOLUMES for volume in spec.get("volumes", []))),
    Rule("privilege escalation", lambda spec: all(
        own.get("allowPrivilegeEscalation") is False for own in own_contexts(spec))),
    Rule("non-root", lambda spec: all(v is True for v in _effective(spec, "runAsNonRoot"))),
    Rule("non-root user", lambda spec: not any(
        own.get("runAsUser") == 0 for own in contexts(spec))),
    Rule("seccomp", lambda spec: all(
        (profile or {}).get("type") in PROFILES for profile in _effective(spec, "seccompProfile"))),
    Rule("drop all capabilities", lambda spec: all(
        "ALL" in own.get("capabilities", {}).get("drop", []) for own in own_contexts(spec))),
    Rule("no added capabilities", lambda spec: all(
        set(own.get("capabilities", {}).get("add", [])) <= {"NET_BIND_SERVICE"}
        for own in own_contexts(spec))),
)  # fmt: skip
