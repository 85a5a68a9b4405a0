"""docs/model.md tells the truth: its example runs and its counts are those of the presets."""

import re
from pathlib import Path

from samite_workloads.model import build_model
from samite_workloads.presets import PRESETS

PAGE = (Path(__file__).parents[3] / "docs" / "model.md").read_text()


def test_the_example_of_the_page_runs(capsys):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    exec(compile(code, "docs/model.md", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


def test_the_counts_of_the_page_are_those_of_the_presets():
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", PAGE, re.MULTILINE)
    assert {name for name, *_ in rows} == set(PRESETS)
    for name, *numbers in rows:
        config = PRESETS[name]
        sizes = {key: parameter.numel() for key, parameter in build_model(config, "meta").named_parameters()}
        vision = sum(size for key, size in sizes.items() if key.startswith(("vision_tower.", "mm_projector.")))
        experts = sum(size for key, size in sizes.items() if ".experts." in key)
        text = sum(sizes.values()) - vision
        active = text - sizes["embed_tokens.weight"] - experts + experts * config.experts_per_token // config.num_experts
        assert [int(number.replace(",", "")) for number in numbers] == [text, active, vision], name
