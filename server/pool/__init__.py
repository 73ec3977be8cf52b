"""Every configured model and its state: unloaded, loading, ready, sleeping, draining, failed."""
