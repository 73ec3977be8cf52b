"""Parsing the output of wrk and ab, and the table of `benchmarks.wrk`."""

import pytest

from benchmarks.wrk import LOADS, SERVERS, Run, WrkError, parse_output, table

OUTPUT = """Running 3s test @ http://127.0.0.1:8080
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    37.24ms   12.10ms   1.12s    90.00%
    Req/Sec   215.00     20.00   250.00     70.00%
  Latency Distribution
     50%  800.00us
     75%   40.11ms
     90%   45.02ms
     99%    1.12s
  645 requests in 3.00s, 190.22KB read
  Socket errors: connect 0, read 2, write 0, timeout 1
  Non-2xx or 3xx responses: 4
Requests/sec:    214.93
Transfer/sec:     63.39KB
"""


AB_OUTPUT = """Complete requests:      597
Failed requests:        3
   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)
Non-2xx responses:      2
Keep-Alive requests:    597
Requests per second:    119.31 [#/sec] (mean)
Percentage of the requests served within a certain time (ms)
  50%     66
  99%     92
"""


@pytest.mark.parametrize(
    ("output", "figures"), [(OUTPUT, (214.93, 0.8, 1120.0, 7)), (AB_OUTPUT, (119.31, 66.0, 92.0, 2))], ids=["wrk", "ab"]
)
def test_rates_latencies_and_errors_are_parsed(output: str, figures: tuple[float, float, float, int]) -> None:
    assert parse_output("tiny.gguf", "peer", "1 token", output) == Run("tiny.gguf", "peer", "1 token", *figures)


def test_output_without_a_rate_is_an_error() -> None:
    with pytest.raises(WrkError, match="unable to connect"):
        parse_output("tiny.gguf", "peer", "1 token", "unable to connect to 127.0.0.1:1")


def test_table_shows_medians_and_the_ratio_to_llama_server() -> None:
    rates = {"llamapool": (90.0, 110.0, 300.0), "peer": (100.0, 100.0, 1.0), "null": (9000.0,) * 3}
    runs = [
        Run("tiny.gguf", name, load, rate, 1.0, 2.0, 0) for load in LOADS for name in SERVERS for rate in rates[name]
    ]
    lines = table(runs).splitlines()
    assert len(lines) == 2 + len(LOADS) * len(SERVERS)
    assert lines[2] == "| tiny.gguf | 1 token | Llamapool | 110 | 1.10 | 1.0 | 2.0 | 0 |"
