import re

import pytest

from headrace.spark.options import OPTIONS, Option
from tools.reference.spark_page import spark_page

ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells]
    for line in spark_page().splitlines()
    if len(cells := re.split(r"(?<!\\)\|", line.strip("|"))) == 5
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_on_its_page(option: Option):
    """The page has each option, and the default that it shows is read as the default that it is."""
    _, kind, default, where, sentence = ROWS[option.name]
    assert kind
    assert where
    assert sentence == option.sentence.replace("|", "\\|")
    assert (option.kind(default.strip("`")) if default else None) == option.default
