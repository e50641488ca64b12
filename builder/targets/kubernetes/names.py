"""What the objects of a deployment are called, and the labels that they find each other by."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from ...deployment import Deployment

# Kubernetes adds to the names of what it makes itself; with the longest of these, a label's value
# of 63 letters is still long enough.
LONGEST = 40
LABEL_LIMIT = 63
TOOL = "trtllm-deployment-toolkit"
CLIENT_LABEL = f"{TOOL}/client-of"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one deployment's objects, all made of `base`, which is also its Service's.

    The group has another one than the Service, since its controller makes a Service by its name.
    """

    base: str
    deployment: str
    release: str
    server: str

    @property
    def group(self) -> str:
        return f"{self.base}-group"

    @property
    def pods(self) -> str:
        return f"{self.base}-pods"

    @property
    def gateway(self) -> str:
        return f"{self.base}-gateway"

    def volume(self, role: str) -> str:
        return f"{self.base}-{role}"

    def labels(self, component: str) -> dict[str, str]:
        """What every object carries."""
        return {
            **self.selector(component),
            "app.kubernetes.io/part-of": self.deployment,
            "app.kubernetes.io/version": self.release,
            "app.kubernetes.io/managed-by": TOOL,
        }

    def selector(self, component: str) -> dict[str, str]:
        """What never changes of an object, by which its pods are found."""
        return {
            "app.kubernetes.io/name": self.server,
            "app.kubernetes.io/instance": self.base,
            "app.kubernetes.io/component": component,
        }


def names(deployment: Deployment, server: str) -> Names:
    return Names(
        object_name(deployment.name),
        deployment.name,
        label_value(deployment.engine.release),
        server.replace("_", "-"),
    )


def object_name(text: str) -> str:
    """Text as the name of a Service, which knows the fewest letters of all objects.

    What is too long, or begins with a digit, keeps its own name apart by a digest.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) <= LONGEST and name[:1].isalpha():
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    head = name if name[:1].isalpha() else f"d{name}"
    return f"{head[: LONGEST - 9].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """Text as the value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:LABEL_LIMIT].strip("._-")
