"""A Prometheus view of plain statistics; the only importer of prometheus_client."""
