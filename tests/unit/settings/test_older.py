"""What was written for an older Llamapool: read, or refused with a line that says what to write."""

from pathlib import Path

import pytest

from server.errors import ConfigError
from server.settings import load_settings, model_specs

FIRST_YAML = """\
server:
  host: 127.0.0.1
  port: 8080
  metrics: true
defaults: # merged under every model
  n_ctx: 16384 # tokens of all slots together: 4 slots of 4096
  n_parallel: 4 # slots of each instance
models: # keyed by the id that requests name
  demo:
    path: demo.gguf # relative to this file
    aliases: [gpt-4o-mini]
    instances: 1
    load: startup # or on_demand
"""
"""config/default.yaml of the first commit that had one."""


def test_the_first_configuration_still_means_what_it_meant(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(FIRST_YAML)
    settings = load_settings([], {}, tmp_path / "c.yaml")
    (spec,) = model_specs(settings)
    assert (settings.server.host, settings.server.port, settings.server.metrics) == (("127.0.0.1",), 8080, True)
    assert (spec.id, spec.path, spec.aliases, spec.load) == (
        "demo",
        tmp_path / "demo.gguf",
        ("gpt-4o-mini",),
        "startup",
    )
    assert (spec.native.n_ctx, spec.native.n_parallel, spec.native.instances) == (16384, 4, 1)


def test_a_key_that_is_gone_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(FIRST_YAML.replace("n_parallel", "parallel"))
    with pytest.raises(ConfigError, match=r"c\.yaml:7: .*parallel.*n_parallel"):
        load_settings([], {}, tmp_path / "c.yaml")
