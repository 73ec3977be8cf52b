"""Prometheus metrics, and the usage of API keys."""

import csv
import io
from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from server.errors import NotSupported, invalid
from server.routes.openapi import TEXT, describe
from server.serving.services import caller_of, services
from server.transport.errors import json_reply

router = APIRouter(tags=["monitoring"])


@router.get("/metrics")
@describe(media=TEXT, errors=(404, 501))
async def metrics(request: Request, model: str = "") -> Response:
    """Return llama-server's metrics with a label ``model``, histograms, HTTP and process metrics.

    With ``?model=`` the metrics of one model without the label, as llama-server's router. Loads no model.
    """
    app = services(request)
    if not app.options.metrics:
        raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
    only = app.pool.state(model).spec.id if model else ""
    body, content_type = app.metrics.render(request.headers.get("accept", ""), only)
    started_at = str(int(app.metrics.started_at))
    return Response(body, headers={"Content-Type": content_type, "Process-Start-Time-Unix": started_at})


COLUMNS = ("day", "key", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens")


@router.get("/v1/usage")
@describe("$UsageReport", errors=(400, 503))
async def usage(
    request: Request,
    start: str = "",
    end: str = "",
    key: str = "",
    model: str = "",
    form: Annotated[str, Query(alias="format")] = "json",
) -> Response:
    """Return the usage of this key, or of all keys with the scope ``metrics`` or if the server has no keys.

    Days are in UTC as ``YYYY-MM-DD``, from ``start`` (default: the first of this month) to ``end`` (default: today).
    ``key`` and ``model`` select rows. ``format=csv`` returns CSV.
    """
    today = datetime.now(UTC).date()
    first, last = _day(start, "start", today.replace(day=1)), _day(end, "end", today)
    if form not in ("json", "csv"):
        raise invalid("format", "must be json or csv")
    caller, app = caller_of(request), services(request)
    name = (key or None) if caller is None or caller.sees_all else caller.name
    rows_by_names = await app.usage.find(first.isoformat(), last.isoformat(), name, model or None)
    rows = [(*names, *counts) for names, counts in rows_by_names.items()]
    if form == "csv":
        text = io.StringIO()
        csv.writer(text).writerows([COLUMNS, *rows])
        return Response(text.getvalue(), media_type="text/csv")
    report: dict[str, Any] = {"object": "list", "data": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}
    if caller is not None and caller.name:
        day, month = app.usage.spent(caller.name)
        report["budget"] = {
            "day": {"used": day, "limit": caller.tokens_per_day or None},
            "month": {"used": month, "limit": caller.tokens_per_month or None},
        }
    return json_reply(report)


def _day(text: str, name: str, default: date) -> date:
    try:
        return date.fromisoformat(text) if text else default
    except ValueError:
        raise invalid(name, "must be a day such as 2026-11-24") from None
