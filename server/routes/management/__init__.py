"""Status and administration of the server and its models."""

from fastapi import APIRouter

from server.routes.management import health, lora, metrics, models, page, props, slot_actions, slots, usage

_MODULES = (health, models, props, slots, slot_actions, lora, metrics, usage, page)
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
