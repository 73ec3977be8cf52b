"""HTTP plumbing that all routes share.

`middleware` wraps the application. `endpoints` resolves a request to an endpoint; `keys` identifies the
client, `cors` checks requests from web pages, `limits` counts, and `admission` combines them. `body` reads bodies.
`sse`, `resumable` and `websocket` stream replies. `errors` turns exceptions into replies.
"""
