"""After a long run: a table of the inputs and what became of them."""

from tests.fuzz import oracle


def pytest_terminal_summary(terminalreporter):
    if not (oracle.NUM_INPUTS or oracle.SURVEY):
        return
    fuzzers = sorted({fuzzer for fuzzer, _ in oracle.COUNTS})
    outcomes = ("accepted", "refused", "failed")
    terminalreporter.write_line(
        f"{'inputs':<16}" + "".join(f"{name:>10}" for name in outcomes) + "       cpu s"
    )
    for fuzzer in fuzzers:
        counts = "".join(f"{oracle.COUNTS[fuzzer, name]:>10}" for name in outcomes)
        terminalreporter.write_line(f"{fuzzer:<16}{counts}{oracle.SECONDS[fuzzer]:>10.1f}")
    terminalreporter.write_line(f"{sum(oracle.COUNTS.values())} inputs in all")
