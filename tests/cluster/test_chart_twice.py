"""Two releases in one real API server (scenario S22): no object belongs to both, none serves what the other serves, and removing one harms nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import lone_api_server, tool
from box.binaries import MissingToolError
from box.folders import REPOSITORY
from box.helm import Helm, HelmError
from box.kubectl import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
CHART = REPOSITORY / "helm" / "samite"
KINDS = (
    "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,deployments,services,configmaps,secrets,networkpolicies,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings,crds"
)
DEFINITIONS = ("clustertrainingruntimes", "nodeblames", "trainingruns", "trainingruntimes")
SECOND = ("--set=crds.install=false", "--set=userRoles.create=false")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            for name in ("a", "b", "c", "team-a", "team-b", "team-c"):
                kubectl("create", "namespace", name)
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture
def helm(server: Kubectl, tmp_path: Path) -> Iterator[Helm]:
    found = Helm(tool("helm"), server.kubeconfig, tmp_path)
    yield found
    for release, namespace in (("samite", "a"), ("samite", "b"), ("wide", "c"), ("samite", "c")):
        found("uninstall", release, f"--namespace={namespace}", "--no-hooks", "--ignore-not-found")
    # What outlives a release belongs to it still, and would be in the next one's way.
    server("delete", "crds", *(f"{plural}.samite.dev" for plural in DEFINITIONS), "--ignore-not-found", limit_s=180)
    for namespace in ("a", "b", "c"):
        server.within(namespace)("delete", "secrets", "--all")


def install(helm: Helm, release: str, namespace: str, *words: str) -> str:
    return helm("install", release, str(CHART), f"--namespace={namespace}", "--no-hooks", *words)


def owned(server: Kubectl) -> dict[str, tuple[str, str, str]]:
    """uid -> (release, its namespace, name) of everything that belongs to a release."""
    found = {}
    for item in json.loads(server("get", KINDS, "--all-namespaces", "-o", "json"))["items"]:
        notes = item["metadata"].get("annotations") or {}
        if "meta.helm.sh/release-name" in notes:
            owner = notes["meta.helm.sh/release-name"], notes["meta.helm.sh/release-namespace"]
            found[item["metadata"]["uid"]] = (*owner, f"{item['kind']}/{item['metadata'].get('namespace', '')}/{item['metadata']['name']}")
    return found


def test_the_same_release_name_in_two_namespaces_shares_nothing_and_one_goes_without_harm(server: Kubectl, helm: Helm):
    install(helm, "samite", "a", "--set=scope.namespaces={team-a}")
    first = owned(server)
    install(helm, "samite", "b", "--set=scope.namespaces={team-b}", *SECOND)
    both = owned(server)
    assert first.items() <= both.items()
    second = {uid: owner for uid, owner in both.items() if uid not in first}
    assert {owner[:2] for owner in second.values()} == {("samite", "b")}
    assert {owner[2] for owner in first.values()}.isdisjoint({owner[2] for owner in second.values()})
    helm("uninstall", "samite", "--namespace=b", "--no-hooks")
    assert first.items() <= owned(server).items()
    for namespace, verdict in (("team-a", "yes"), ("team-b", "no")):
        asked = ("auth", "can-i", "patch", "trainingruns", f"--namespace={namespace}", "--as=system:serviceaccount:a:samite-operator")
        assert server(*asked, check=False).strip().endswith(verdict)


def test_the_first_release_may_go_and_the_second_keeps_its_rights_and_the_definitions(server: Kubectl, helm: Helm):
    install(helm, "samite", "a", "--set=scope.namespaces={team-a}")
    install(helm, "samite", "b", "--set=scope.namespaces={team-b}", *SECOND)
    second = {uid: owner for uid, owner in owned(server).items() if owner[1] == "b"}
    helm("uninstall", "samite", "--namespace=a", "--no-hooks")
    assert second.items() <= owned(server).items()
    assert len([name for name in server("get", "crds", "-o", "name").split() if name.endswith(".samite.dev")]) == 4
    asked = ("auth", "can-i", "patch", "trainingruns", "--namespace=team-b", "--as=system:serviceaccount:b:samite-operator")
    assert server(*asked).strip().endswith("yes")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--set=scope.namespaces={team-b,team-a}",), "release samite of namespace a serves team-a already"),
        (("--set=scope.mode=cluster",), "release samite of namespace a serves team-a already"),
    ],
)
def test_two_releases_do_not_serve_one_namespace(server: Kubectl, helm: Helm, words: tuple[str, ...], named: str):
    install(helm, "samite", "a", "--set=scope.namespaces={team-a}")
    before = owned(server)
    with pytest.raises(HelmError, match=named):
        install(helm, "wide", "c", *words, *SECOND)
    assert owned(server) == before
    helm("upgrade", "samite", str(CHART), "--namespace=a", "--no-hooks", "--set=scope.namespaces={team-a,team-c}")


def test_beside_a_release_that_serves_every_namespace_there_is_no_other(server: Kubectl, helm: Helm):
    install(helm, "wide", "c", "--set=scope.mode=cluster")
    with pytest.raises(HelmError, match="release wide of namespace c serves team-a already"):
        install(helm, "samite", "a", "--set=scope.namespaces={team-a}", *SECOND)
    install(helm, "samite", "a", "--set=scope.namespaces={team-a}", "--set=scope.exclusive=false", *SECOND)


def test_definitions_that_another_release_owns_are_refused_with_their_owner(server: Kubectl, helm: Helm):
    install(helm, "samite", "a", "--set=scope.namespaces={team-a}")
    with pytest.raises(HelmError, match=r"(?s)samite\.dev.*(release-namespace|ownership)"):
        install(helm, "samite", "b", "--set=scope.namespaces={team-b}")
    assert {owner[1] for owner in owned(server).values()} == {"a"}
