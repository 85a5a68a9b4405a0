"""Rules about names, secrets, restarts, detection and the learning-rate schedule."""

import re
from collections.abc import Iterator

from samite.spec.cel import CelRule, computed, let, only_one, quoted, repeats, short, template
from samite.spec.rules import Document, Finding, Rule, exactly_one, part
from samite.spec.run import MAX_NAME_LENGTH, NAME_PATTERN

SECRET_NAME = r"(?i)(^|_)(secret|token|password|passwd|api_?key|access_?key|credentials?)(_|$)"  # noqa: S105
"""Names whose values are secrets. Anchored at underscores, so that MAX_TOKENS_PER_GPU and TOKENIZERS_PARALLELISM are fine."""

ENGINE_NAMES = r"^(SAMITE_(RUN_UID|NODE|HOME|MEETING).*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
"""Variables that the engines set for every rank: another value would break the run."""


def _name_fits_engines(document: Document) -> Iterator[Finding]:
    name = part(document, "metadata", "name")
    if isinstance(name, str) and (len(name) > MAX_NAME_LENGTH or not re.fullmatch(NAME_PATTERN, name)):
        wanted = f"small letters, digits and dashes, beginning with a letter, at most {MAX_NAME_LENGTH} characters"
        yield Finding(path=("metadata", "name"), wanted=wanted, found=f'"{name}"')


def _no_secret_literals(document: Document) -> Iterator[Finding]:
    for index, variable in enumerate(part(document, "spec", "env") or []):
        name = variable.get("name")
        if isinstance(name, str) and "valueFrom" not in variable and re.search(SECRET_NAME, name):
            on_cluster = part(document, "spec", "engine") in {"RayCluster", "RayJob"}
            source = "secretKeyRef: {name: SECRET, key: KEY}" if on_cluster else f"hostEnv: {name}"
            hint = f"write valueFrom: {{{source}}} and remove value"
            yield Finding(
                path=("spec", "env", index),
                wanted=f"no value for {name}: its name says that it is a secret, and a spec is stored and shown",
                found="value",
                hint=hint,
            )


def _one_value(document: Document) -> Iterator[Finding]:
    for index, variable in enumerate(part(document, "spec", "env") or []):
        if "name" in variable and (odd := exactly_one(variable, ("value", "valueFrom"))):
            yield Finding(
                path=("spec", "env", index), wanted="exactly one of value and valueFrom", found=odd[0], hint=odd[1] or 'such as value: "1"'
            )


def _one_value_source(document: Document) -> Iterator[Finding]:
    for index, variable in enumerate(part(document, "spec", "env") or []):
        source = part(variable, "valueFrom")
        if isinstance(source, dict) and (odd := exactly_one(source, ("secretKeyRef", "configMapKeyRef", "hostEnv"))):
            path = ("spec", "env", index, "valueFrom")
            yield Finding(path=path, wanted="exactly one of secretKeyRef, configMapKeyRef and hostEnv", found=odd[0], hint=odd[1])


def _unique_variables(document: Document) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, variable in enumerate(part(document, "spec", "env") or []):
        name = variable.get("name")
        if name is not None and name in seen:
            yield Finding(
                path=("spec", "env", index, "name"), wanted="each variable once", found=f"{name} again", hint="keep one of the two"
            )
        if name is not None:
            seen.add(name)


def _variables_are_free(document: Document) -> Iterator[Finding]:
    for index, variable in enumerate(part(document, "spec", "env") or []):
        name = variable.get("name")
        if isinstance(name, str) and re.match(ENGINE_NAMES, name):
            path = ("spec", "env", index, "name")
            yield Finding(path=path, wanted="another name: the engine sets this one for every rank", found=f'"{name}"', hint="remove it")


def _rayjob_restarts_at_three(document: Document) -> Iterator[Finding]:
    level = part(document, "spec", "restart", "startLevel")
    if part(document, "spec", "engine") == "RayJob" and level is not None and level < 3:
        wanted = "3 or more, because the RayJob engine cannot restart in place"
        yield Finding(path=("spec", "restart", "startLevel"), wanted=wanted, found=str(level), hint="write 3, or engine: RayCluster")


def _levels_rise(document: Document) -> Iterator[Finding]:
    low, high = part(document, "spec", "restart", "startLevel"), part(document, "spec", "restart", "maxLevel")
    if low is not None and high is not None and low > high:
        path = ("spec", "restart", "maxLevel")
        yield Finding(
            path=path, wanted=f"at least restart.startLevel ({low})", found=str(high), hint=f"write maxLevel: {low}, or startLevel: {high}"
        )


def _backoff_rises(document: Document) -> Iterator[Finding]:
    low, high = part(document, "spec", "restart", "backoff", "initialSeconds"), part(document, "spec", "restart", "backoff", "capSeconds")
    if low is not None and high is not None and low > high:
        path = ("spec", "restart", "backoff", "capSeconds")
        yield Finding(
            path=path,
            wanted=f"at least initialSeconds ({low:g})",
            found=f"{high:g}",
            hint=f"write capSeconds: {low:g}, or initialSeconds: {high:g}",
        )


def _exit_codes_are_ours(document: Document) -> Iterator[Finding]:
    for index, rule in enumerate(part(document, "spec", "restart", "exitCodes") or []):
        for position, code in enumerate(rule.get("codes") or []):
            if code in {93, 137}:
                why = "93 always means: do not restart" if code == 93 else "the kernel produces 137 when memory runs out"
                path = ("spec", "restart", "exitCodes", index, "codes", position)
                yield Finding(path=path, wanted="another exit code", found=f"{code}; {why}", hint="choose one from 64 to 92")


def _hang_needs_a_heartbeat(document: Document) -> Iterator[Finding]:
    floor, period = (
        part(document, "spec", "detection", "hang", "floorSeconds"),
        part(document, "spec", "detection", "heartbeat", "periodSeconds"),
    )
    if floor is not None and period is not None and floor < 2 * period:
        path = ("spec", "detection", "hang", "floorSeconds")
        wanted = f"at least {2 * period:g}, twice detection.heartbeat.periodSeconds: else a healthy run looks hung"
        yield Finding(path=path, wanted=wanted, found=f"{floor:g}", hint=f"write {2 * period:g} or more")


def _schedule_fits(document: Document) -> Iterator[Finding]:
    optimizer = part(document, "spec", "optimizer") or {}
    warmup, decay = optimizer.get("warmupFraction"), optimizer.get("decayFraction")
    if optimizer.get("schedule") == "WSD" and warmup is not None and decay is not None and warmup + decay > 1:
        path = ("spec", "optimizer", "decayFraction")
        yield Finding(
            path=path,
            wanted=f"at most {1 - warmup:g}, because warmupFraction is {warmup:g}",
            found=f"{decay:g}",
            hint=f"write {1 - warmup:g} or less",
        )


MAX_VARIABLES = 64
_LEFT = short("1.0 - self.warmupFraction")

POLICY_RULES = (
    Rule(
        name="name-fits-both-engines",
        check=_name_fits_engines,
        message=f"metadata.name has at most {MAX_NAME_LENGTH} small letters, digits and dashes, and begins with a letter",
        cel=(
            CelRule(
                at="",
                field=".metadata.name",
                holds=f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches({quoted(NAME_PATTERN)})",
                says="wanted small letters, digits and dashes, beginning with a letter, "
                f'at most {MAX_NAME_LENGTH} characters; found "<<self.metadata.name>>"',
            ),
        ),
    ),
    Rule(
        name="no-secret-literals",
        check=_no_secret_literals,
        message="a variable whose name says that it is a secret takes valueFrom",
        cel=(
            CelRule(
                at="spec.env[]",
                holds=f"has(self.valueFrom) || !self.name.matches({quoted(SECRET_NAME)})",
                says="wanted no value for <<self.name>>: its name says that it is a secret, and a spec is stored and shown; found value; "
                "write valueFrom: {secretKeyRef: {name: SECRET, key: KEY}} and remove value",
            ),
        ),
    ),
    Rule(
        name="one-value",
        check=_one_value,
        message="exactly one of value and valueFrom",
        cel=(only_one("spec.env[]", ("value", "valueFrom"), otherwise='such as value: "1"'),),
    ),
    Rule(
        name="one-value-source",
        check=_one_value_source,
        message="exactly one of secretKeyRef, configMapKeyRef and hostEnv",
        cel=(only_one("spec.env[].valueFrom", ("secretKeyRef", "configMapKeyRef", "hostEnv"), otherwise=""),),
    ),
    Rule(
        name="variables-are-unique",
        check=_unique_variables,
        message="each environment variable stands once",
        cel=(
            CelRule(
                at="spec.env",
                holds="self.all(a, self.exists_one(b, b.name == a.name))",
                says=computed(
                    let(
                        "i",
                        repeats("name", MAX_VARIABLES),
                        template("[<<i>>].name: wanted each variable once; found <<self[i].name>> again; keep one of the two"),
                    )
                ),
            ),
        ),
    ),
    Rule(
        name="variables-are-free",
        check=_variables_are_free,
        message="variables that the engine sets for every rank cannot be set here",
        cel=(
            CelRule(
                at="spec.env[]",
                field=".name",
                holds=f"!self.name.matches({quoted(ENGINE_NAMES)})",
                says='wanted another name: the engine sets this one for every rank; found "<<self.name>>"; remove it',
            ),
        ),
    ),
    Rule(
        name="rayjob-cannot-restart-in-place",
        check=_rayjob_restarts_at_three,
        message="restart.startLevel is 3 or more with the RayJob engine",
        cel=(
            CelRule(
                at="spec",
                field=".restart.startLevel",
                holds="self.engine != 'RayJob' || self.restart.startLevel >= 3",
                says="wanted 3 or more, because the RayJob engine cannot restart in place; found <<self.restart.startLevel>>; "
                "write 3, or engine: RayCluster",
            ),
        ),
    ),
    Rule(
        name="levels-rise",
        check=_levels_rise,
        message="restart.startLevel is at most maxLevel",
        cel=(
            CelRule(
                at="spec.restart",
                field=".maxLevel",
                holds="self.startLevel <= self.maxLevel",
                says="wanted at least restart.startLevel (<<self.startLevel>>); found <<self.maxLevel>>; write maxLevel: <<self.startLevel>>, "
                "or startLevel: <<self.maxLevel>>",
            ),
        ),
    ),
    Rule(
        name="backoff-rises",
        check=_backoff_rises,
        message="backoff.initialSeconds is at most capSeconds",
        cel=(
            CelRule(
                at="spec.restart.backoff",
                field=".capSeconds",
                holds="self.initialSeconds <= self.capSeconds",
                says="wanted at least initialSeconds (<<self.initialSeconds>>); found <<self.capSeconds>>; write capSeconds: <<self.initialSeconds>>, "
                "or initialSeconds: <<self.capSeconds>>",
            ),
        ),
    ),
    Rule(
        name="exit-codes-are-free",
        check=_exit_codes_are_ours,
        message="exit codes 93 and 137 have a fixed meaning",
        cel=(
            CelRule(
                at="spec.restart.exitCodes[].codes[]",
                holds="self != 93 && self != 137",
                says="wanted another exit code; found <<self>>; "
                "<<self == 93 ? '93 always means: do not restart' : 'the kernel produces 137 when memory runs out'>>; choose one from 64 to 92",
            ),
        ),
    ),
    Rule(
        name="hang-limit-exceeds-the-heartbeat",
        check=_hang_needs_a_heartbeat,
        message="hang.floorSeconds is at least twice heartbeat.periodSeconds",
        cel=(
            CelRule(
                at="spec.detection",
                field=".hang.floorSeconds",
                holds="self.hang.floorSeconds >= 2.0 * self.heartbeat.periodSeconds",
                says="wanted at least <<2.0 * self.heartbeat.periodSeconds>>, twice detection.heartbeat.periodSeconds: else a healthy run looks hung; "
                "found <<self.hang.floorSeconds>>; write <<2.0 * self.heartbeat.periodSeconds>> or more",
            ),
        ),
    ),
    Rule(
        name="schedule-fits",
        check=_schedule_fits,
        message="warmupFraction + decayFraction is at most 1 with WSD",
        cel=(
            CelRule(
                at="spec.optimizer",
                field=".decayFraction",
                holds="self.schedule != 'WSD' || self.warmupFraction + self.decayFraction <= 1.0",
                says=f"wanted at most <<{_LEFT}>>, because warmupFraction is <<self.warmupFraction>>; found <<self.decayFraction>>; "
                f"write <<{_LEFT}>> or less",
            ),
        ),
    ),
)
