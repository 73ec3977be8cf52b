"""The whole API on one screen.

==================================================  =============================================
``GET  /health  /v1/health  /livez  /readyz``       `health`: open without a key
``GET  /v1/models  /v1/models/{id}  /models``       `models`: every model, its status and facts
``POST /models/load  /models/unload``
``GET  /models/sse``                                events: status changes, load progress
``GET  /props``                                     `props`: one model's properties
``GET  /slots``                                     `slots`: what every slot does
``GET  /metrics``                                   `metrics`: Prometheus
``POST /v1/chat/completions  /apply-template``      `chat`: OpenAI chat; also without ``/v1``
``POST /v1/completions``                            `completions`: OpenAI text completions
``POST /tokenize  /detokenize``                     `tokens`
==================================================  =============================================
"""

from fastapi import FastAPI

from server.routes import chat, completions, health, metrics, models, props, slots, tokens

ROUTERS = (
    health.router,
    models.router,
    props.router,
    slots.router,
    metrics.router,
    chat.router,
    completions.router,
    tokens.router,
)


def include_routes(app: FastAPI, prefix: str) -> None:
    """Add every route to `app`, each path behind `prefix` (llama-server's ``--api-prefix``)."""
    for router in ROUTERS:
        app.include_router(router, prefix=prefix)
