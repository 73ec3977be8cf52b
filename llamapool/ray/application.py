"""The Ray Serve application: a front and its replicas."""

import shlex
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from llamapool.ray.front import Front
from llamapool.ray.replica import Replica
from server.options.server import ServerSettings

PREFIX_ROUTER = "llamapool.ray.router.PrefixRouter"


class Scale(BaseModel):
    """Autoscaling between `least` and `most` replicas, with `requests` concurrent requests per replica."""

    model_config = ConfigDict(extra="forbid")

    least: Annotated[int, Field(ge=0)] = 1
    most: Annotated[int, Field(ge=1)] = 2
    requests: Annotated[float, Field(gt=0)] = 8.0
    up_after_s: Annotated[float, Field(ge=0)] = 30.0
    down_after_s: Annotated[float, Field(ge=0)] = 600.0

    def autoscaling(self) -> AutoscalingConfig:
        return AutoscalingConfig(
            min_replicas=self.least,
            max_replicas=self.most,
            initial_replicas=max(self.least, 1),
            target_ongoing_requests=self.requests,
            upscale_delay_s=self.up_after_s,
            downscale_delay_s=self.down_after_s,
        )


class Arguments(BaseModel):
    """Arguments of ``llamapool.ray:build``, on the command line or in Serve's YAML.

    ``flags`` are the server's flags of a replica. ``actor`` is Ray's ``ray_actor_options`` of a replica, such as
    ``num_gpus: 1``. ``waiting`` is the maximum number of requests of a replica, including those in its queues.
    """

    model_config = ConfigDict(extra="forbid")

    flags: list[str] = []
    replicas: int | Scale = 1
    fronts: Annotated[int, Field(ge=1)] = 1
    waiting: Annotated[int, Field(ge=1)] = 256
    router: str = PREFIX_ROUTER
    actor: dict[str, Any] = {}
    drain_s: Annotated[float, Field(gt=0)] = 60.0

    @field_validator("flags", mode="before")
    @classmethod
    def words(cls, value: object) -> object:
        """Split the flags, which the command line passes as one string."""
        return shlex.split(value) if isinstance(value, str) else value


def application(arguments: Arguments) -> serve.Application:
    """Return the application without deploying it."""
    scale = arguments.replicas
    replicas = serve.deployment(Replica).options(
        **({"num_replicas": scale} if isinstance(scale, int) else {"autoscaling_config": scale.autoscaling()}),
        max_ongoing_requests=arguments.waiting,
        ray_actor_options=arguments.actor,
        graceful_shutdown_timeout_s=arguments.drain_s,
        request_router_config=RequestRouterConfig(
            request_router_class=arguments.router, request_routing_stats_period_s=1.0
        ),
    )
    front = serve.deployment(Front).options(
        num_replicas=arguments.fronts,
        max_ongoing_requests=4096,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=arguments.drain_s,
    )
    limit = ServerSettings.model_fields["max_body_bytes"].default
    return front.bind(replicas.bind(arguments.flags), limit)
