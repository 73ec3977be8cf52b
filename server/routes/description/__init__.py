"""The OpenAPI document: `openapi` serves it, `operations` describes endpoints, `replies` their replies."""
