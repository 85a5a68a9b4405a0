"""Settings come from the environment, and a wrong one names its variable."""

import pytest

from samite.errors import UsageError
from samite_operators.settings import Settings


def test_without_variables_the_whole_cluster_is_served_and_nothing_is_in_maintenance():
    settings = Settings.from_environment({})
    assert settings.clusterwide
    assert settings.serves("any")
    assert not settings.maintenance
    assert (settings.finalizer_s, settings.progress_s, settings.workers) == (300.0, 10.0, 20)


def test_namespaces_are_a_list_without_repetitions():
    settings = Settings.from_environment({"SAMITE_NAMESPACES": " team-a, team-b,team-a ,"})
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.serves("team-b")
    assert not settings.serves("team-c")


def test_a_star_means_the_whole_cluster():
    assert Settings.from_environment({"SAMITE_NAMESPACES": "*"}).clusterwide


def test_three_renewals_fit_into_the_lease():
    settings = Settings.from_environment({"SAMITE_LEASE_SECONDS": "6"})
    assert settings.renew_s == 2.0


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SAMITE_NAMESPACES", "team-*", "names of namespaces"),
        ("SAMITE_TURN_SECONDS", "soon", "must be seconds, found 'soon'"),
        ("SAMITE_WORKERS", "0", "at least 1; found 0"),
        ("SAMITE_WORKERS", "2.5", "a whole number"),
        ("SAMITE_LEASE_SECONDS", "nan", "at least 2"),
        ("SAMITE_MAINTENANCE", "maybe", "true or false"),
        ("SAMITE_LOG_FORMAT", "xml", "json, text"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_variable(variable: str, value: str, says: str):
    with pytest.raises(UsageError, match=variable) as caught:
        Settings.from_environment({variable: value})
    assert says in str(caught.value)
