"""What the server says about itself and its models, and what changes them."""

from server.routes.management import (
    health,
    lora,
    metrics,
    models,
    page,
    props,
    slot_actions,
    slots,
)

__all__ = [
    "ROUTERS",
    "health",
    "lora",
    "metrics",
    "models",
    "page",
    "props",
    "slot_actions",
    "slots",
]

ROUTERS = (
    health.router,
    models.router,
    props.router,
    slots.router,
    slot_actions.router,
    lora.router,
    metrics.router,
    page.router,
)
