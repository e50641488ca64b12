"""What a deployment file says about its monitoring."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...deployment import ServerName, Strict
from ...servers import Host, Port

Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}$")]
Url = Annotated[str, Field(pattern=r"^[A-Za-z0-9._~:/?&=%+-]+$", max_length=500)]
Days = Annotated[int, Field(ge=1, le=365)]


class Options(Strict):
    """Who watches what.

    `server` is the target that is watched: where it is not said, the one that another target runs,
    else Triton if the deployment has it. It runs on `hosts`, or where its own options say.

    `blackbox` is where a blackbox exporter listens, which asks for readiness and certificates, and
    `dcgm_port` the port of a DCGM exporter on each host; `null` leaves out what they measure.

    `availability` is the share of requests to be served, `acceptance_floor` the least share of
    draft tokens to be accepted, `certificate_days` how early to renew. Alerts link to
    `runbook_url`. For a rehearsal, `speed` divides all windows and waiting times.
    """

    server: ServerName | None = None
    hosts: list[Host] = Field(default_factory=list)
    blackbox: Address | None = "127.0.0.1:9115"
    dcgm_port: Port | None = 9400
    alertmanager: Address = "127.0.0.1:9093"
    availability: Annotated[float, Field(gt=0, lt=1)] | None = None
    acceptance_floor: Annotated[float, Field(gt=0, lt=1)] | None = None
    certificate_days: Days = 21
    runbook_url: Url = "handoff/runbook.html"
    speed: Annotated[int, Field(ge=1, le=60)] = 1
