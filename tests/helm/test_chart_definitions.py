"""The four definitions come with the chart, and stay when it goes."""

from chart import Helm, of_kind


def test_definitions_are_kept_unless_asked_otherwise(helm: Helm):
    kept = of_kind(helm.objects(), "CustomResourceDefinition")
    assert {item["metadata"]["annotations"]["helm.sh/resource-policy"] for item in kept} == {"keep"}
    assert len(kept) == 4
    free = of_kind(helm.objects(sets=["crds.keep=false"]), "CustomResourceDefinition")
    assert not any("helm.sh/resource-policy" in item["metadata"].get("annotations", {}) for item in free)
    assert of_kind(helm.objects(sets=["crds.install=false"]), "CustomResourceDefinition") == []
