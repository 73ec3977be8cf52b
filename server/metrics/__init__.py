"""Prometheus metrics of plain statistics. Nothing else imports prometheus_client."""
