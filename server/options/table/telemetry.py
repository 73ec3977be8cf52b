"""Options of what is told to who looks from outside."""

from typing import ClassVar

from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool


class TelemetrySettings(SettingsModel):
    """What is told beside logs and metrics."""

    group: ClassVar[str] = "Telemetry"

    otel: Bool = option(False, "--otel")
    """Send a trace of each request by OpenTelemetry, to where its own variables say (OTEL_EXPORTER_OTLP_ENDPOINT).
    Needs llamapool[otel]."""
    kv_events: str = option("", "--kv-events", metavar="ENDPOINT")
    """Where to publish which prompts' beginnings are held, over ZMQ as vLLM does: tcp://*:5557 is listened at,
    tcp://router:5557 connected to. Whoever subscribes reads the tokens of prompts. Needs llamapool[events]."""
    kv_events_replay: str = option("", "--kv-events-replay", metavar="ENDPOINT")
    """Where to answer who has missed some of these events, e.g. tcp://*:5558."""
    kv_events_pod: str = option("", "--kv-events-pod", metavar="NAME")
    """What these events call this server, as the router knows it; by default the host's name."""
