"""A few tries of every campaign. `make campaign` runs them for as long as asked."""

import pytest

from tests.campaigns import CAMPAIGNS, load
from tests.campaigns.campaign import Campaign


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_campaign_finds_no_failure(name):
    campaign = Campaign(name, seed=1, tries=CAMPAIGNS[name].tries)
    load(name)(campaign)
    assert sum(campaign.counts.values()) > 0
    assert campaign.failures == []


def test_a_try_depends_only_on_name_seed_and_number():
    draws = [random.random() for random in Campaign("a", tries=3).tries()]
    assert draws[1:] == [random.random() for random in Campaign("a", first=1, tries=2).tries()]
    assert draws[0] != next(Campaign("b", tries=1).tries()).random()


def test_expecting_records_other_errors_as_failures():
    campaign = Campaign("a", tries=1)
    for _ in campaign.tries():
        with campaign.expecting("a call", ValueError):
            raise ValueError
        with campaign.expecting("a call", ValueError):
            raise KeyError("b")
    assert campaign.failures == ["try 0: a call: KeyError: 'b'"]
