"""The web page: its files, and how they are served.

``static/`` holds what browsers get, as it is: ``index.html``, the modules in ``app/`` (``app/main.js`` first), and in
``vendor/`` what comes from npm (`extras/page/vendor.py` puts it there).
"""
