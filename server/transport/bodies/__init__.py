"""Bodies of requests: `read` as JSON, as a `form`, and the `memory` that all of them share."""
