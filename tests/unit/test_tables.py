"""CSV files of names that come from anywhere."""

import csv
import io

import pytest

from rungwise.core.tables import csv_bytes


@pytest.mark.parametrize("value", ["=1+2", "+1", "-x", "@SUM(A1)", "\t=1", "\n=1"])
def test_no_spreadsheet_runs_a_name_as_a_formula(value: str) -> None:
    """The characters that open a formula are those of OWASP's page on CSV injection."""
    rows = [{value: value, "n": -0.5}, {"n": -1, "more": "a=b\rc"}]
    read = list(csv.reader(io.StringIO(csv_bytes(rows).decode(), newline="")))
    assert read == [[f"'{value}", "n", "more"], [f"'{value}", "-0.5", ""], ["", "-1", "a=b c"]]
