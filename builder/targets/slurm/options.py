"""What a deployment file says about the service under Slurm."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ...deployment import Strict
from ...servers import Host, Port, is_address
from ...site import Site

# Slurm keeps the time of `--signal` in 16 bits.
LONGEST_LEAD_S = 65_535
# It looks every 30 seconds whether a time is up, and the signal may come so much early.
# Source: measured on Slurm 22.05 with --signal=B:USR1@70 -t 2.
SIGNAL_SLACK_S = 60

EVERYWHERE = "0.0.0.0"
THE_NODE = "node"

Count = Annotated[int, Field(ge=1, le=10_000)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


class Router(Strict):
    """Where the router before several servers listens."""

    http_port: Port = 9000
    grpc_port: Port = 9001

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.http_port == self.grpc_port:
            raise ValueError("http_port and grpc_port collide; give each its own number")
        return self


class Prefill(Strict):
    """The other side of disaggregated serving: a deployment of role prefill, and its servers.

    `deployment` is a mapping: in a deployment file, mostly the name of a file or a preset.
    """

    deployment: dict[str, Any] | str
    servers: Count = 1


class Options(Strict):
    """How the service runs under Slurm.

    `site` is the profile of the cluster: in a deployment file, mostly the name of its file.
    `server` is the target that runs, where there are several. A service under Slurm is asked from
    other nodes: its front listens on every address of its node unless `host` says otherwise, as
    `node` does: the one address that the node's name stands for.

    `successor_lead_s` before its time limit the job asks for a successor, which takes the time to
    queue, to start and to be admitted. Then the job drains for `drain_s`.

    A deployment of role decode may name its `prefill` servers; so many `servers` of its own and a
    router make the service then.
    """

    site: Site
    server: Literal["trtllm_serve", "triton"] | None = None
    host: Host = EVERYWHERE
    time_limit_s: Seconds = 28_800
    successor_lead_s: Annotated[int, Field(ge=60, le=LONGEST_LEAD_S)] = 3_000
    drain_s: Seconds = 300
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    router: Router = Router()
    servers: Count = 1
    prefill: Prefill | None = None

    @property
    def listens(self) -> str:
        """The address in the files of a job, in which `{host}` is filled in on its node."""
        return "{host}" if self.host == THE_NODE else self.host

    @property
    def heard_at(self) -> str:
        """An address as far as it is known before there is a job."""
        return self.host if is_address(self.host) else EVERYWHERE

    @model_validator(mode="before")
    @classmethod
    def _has_site(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("site") is None:
            raise ValueError("has no site; name the file of a profile, here or with --site FILE")
        return value

    @model_validator(mode="after")
    def _in_time(self) -> Self:
        least = self.successor_lead_s + SIGNAL_SLACK_S
        if self.time_limit_s <= least:
            what = f"time_limit_s {self.time_limit_s} is over before a successor could be ready"
            raise ValueError(f"{what}; give more than {least}, or lower successor_lead_s")
        if self.drain_s >= self.successor_lead_s:
            what = f"drain_s {self.drain_s} leaves a successor no time"
            raise ValueError(f"{what}; give less than successor_lead_s {self.successor_lead_s}")
        return self

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        if self.servers > 1 and self.prefill is None:
            what = f"servers is {self.servers}, which only a deployment with prefill servers has"
            raise ValueError(f"{what}; remove it, or submit the job so many times")
        return self
