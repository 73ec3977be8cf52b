"""The web UI: its files and how they are served.

``static/`` has the files that browsers get unchanged: ``index.html``, the modules in ``app/`` (``app/main.js`` is
the entry point), and npm packages in ``vendor/`` (`extras/page/vendor.py` copies them).
"""
