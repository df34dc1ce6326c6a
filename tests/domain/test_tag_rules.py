"""Rules over hardware: one comparison, no language, nothing decided by what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.tag_rules import parse_rule
from seamlessflow.contracts import Hardware

H800 = Hardware(device="H800", memory_bytes=80e9, flops=990e12, bandwidth_bytes=3.35e12)
H20 = Hardware(device="H20", memory_bytes=96e9, flops=148e12, bandwidth_bytes=4.0e12)


@pytest.mark.parametrize(
    ("rule", "holds_of_h800", "holds_of_h20"),
    [
        ("flops/bandwidth > 250", True, False),  # prefill is bound by operations
        ("flops / bandwidth < 1e2", False, True),  # decoding by bandwidth
        ("memory >= 96e9", False, True),
        ("memory<=80e9", True, False),
        ("flops > 9.9e14", False, False),
    ],
)
def test_hardware_that_fits_has_the_tag(rule, holds_of_h800, holds_of_h20):
    """Compute-rich and bandwidth-rich devices are told apart."""
    assert (parse_rule(rule).holds(H800), parse_rule(rule).holds(H20)) == (holds_of_h800, holds_of_h20)


@pytest.mark.parametrize("hardware", [None, Hardware(), Hardware(flops=1e15)])
@pytest.mark.parametrize("rule", ["flops/bandwidth < 250", "flops/bandwidth > 250", "memory < 1"])
def test_what_is_not_known_decides_nothing(rule, hardware):
    """A node that says nothing of its hardware fulfils no rule, in either direction."""
    assert not parse_rule(rule).holds(hardware)


@pytest.mark.parametrize(
    "text",
    ["", "flops", "flops > ", "flops > x", "price > 1", "flops/price > 1", "flops > 1 and memory > 1", "flops == 1",
     "__import__('os').system('true') > 1", "flops > 1; memory > 1", "flops > -1"],
)  # fmt: skip
def test_what_is_no_comparison_is_refused_and_shown_one(text):
    """Nothing is evaluated."""
    with pytest.raises(ValueError, match="expected a comparison like 'flops/bandwidth > 250'"):
        parse_rule(text)


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_refused(text):
    """And nothing else."""
    try:
        rule = parse_rule(text)
    except ValueError:
        return
    assert rule.holds(H800) in (True, False)
