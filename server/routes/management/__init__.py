"""Status and administration of the server and its models."""

from fastapi import APIRouter

from server.routes.management import health, metrics, models, page, props, slots

_MODULES = (health, models, props, slots, metrics, page)
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
