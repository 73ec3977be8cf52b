"""``GET /v1/models`` for clients of Anthropic's API: its keys in addition to the common ones."""

from collections.abc import Sequence
from datetime import UTC, datetime

from server.dialects.common import Json

ANTHROPIC_VERSION = "anthropic-version"
"""The header that all of them send."""


def anthropic_models(models: Sequence[Json]) -> Json:
    """The list, which is one page."""
    ids = [model["id"] for model in models]
    page = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"object": "list", "data": [anthropic_model(model) for model in models], **page}


def anthropic_model(model: Json) -> Json:
    """Convert an entry of OpenAI's list. Input and output limits are known once the model has been loaded."""
    n_ctx = model.get("meta", {}).get("n_ctx")
    return {
        "type": "model",
        **model,
        "display_name": model["id"],
        "created_at": datetime.fromtimestamp(model["created"], UTC).isoformat().replace("+00:00", "Z"),
        "max_input_tokens": n_ctx,
        "max_tokens": n_ctx,
        "lifecycle": "active",
        **dict.fromkeys(("capabilities", "line", "deprecated_at", "retires_at")),
    }
