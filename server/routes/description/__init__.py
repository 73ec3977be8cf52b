"""The API in OpenAPI's words: `openapi` is the document, `operations` its endpoints, `replies` what they answer."""
