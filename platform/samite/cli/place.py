"""Where a command looks for runs: on this machine, or in a namespace of a Kubernetes cluster.

    --context, --namespace/-n, --kubeconfig, before or after the command   a cluster
    SAMITE_CONTEXT, SAMITE_NAMESPACE, SAMITE_KUBECONFIG                    the same, for a shell
    none of them                                                           this machine

`submit` goes by the document's `spec.engine` first: a Local run stays local whatever the shell prefers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from samite.engines.base import RunClient

FLAGS = ("context", "namespace", "kubeconfig")
_flags: ContextVar[dict[str, str]] = ContextVar("flags")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The cluster that was named. All empty: this machine."""

    context: str = ""
    namespace: str = ""
    kubeconfig: str = ""
    by_flag: bool = False
    """Named on the command line, not by the shell's environment."""
    must_be_cluster: bool = False
    """A cluster in any case: the kubeconfig's current context if none is named."""

    @property
    def is_cluster(self) -> bool:
        """Whether any part of a cluster was named."""
        return bool(self.must_be_cluster or self.context or self.namespace or self.kubeconfig)


@contextmanager
def fresh_flags() -> Iterator[None]:
    """Flags of one command line; gone afterwards."""
    token = _flags.set({})
    try:
        yield
    finally:
        _flags.reset(token)


def take_flag(name: str, value: str) -> None:
    """Remember one of the three flags; an empty value is none."""
    if value:
        _given()[name] = value


def _given() -> dict[str, str]:
    return _flags.get({})


def chosen() -> Place:
    """What flags, then environment, say."""
    flags = _given()

    def value(name: str) -> str:
        return flags.get(name) or os.environ.get(f"SAMITE_{name.upper()}", "")

    return Place(context=value("context"), namespace=value("namespace"), kubeconfig=value("kubeconfig"), by_flag=bool(flags))


def command(client: "RunClient[Any]", *words: str) -> str:
    """A samite command to suggest, which looks where `client` looks."""
    return " ".join(["samite", *words, *client.flags])


def engine(*, place: Place | None = None, revive: bool = False, all_namespaces: bool = False) -> "RunClient[Any]":
    """The client of the chosen place. With `revive`, local runs whose supervisor was killed get another."""
    from samite.cli.output import note

    found = place or chosen()
    if found.is_cluster:
        from samite.engines.kuberay.client import ClusterEngine

        return ClusterEngine.connect(
            context=found.context, namespace=found.namespace, kubeconfig=found.kubeconfig, all_namespaces=all_namespaces, tell=note
        )
    from samite.engines.local.client import LocalEngine
    from samite.settings import Settings

    local = LocalEngine(Settings.from_environment())
    for name in local.revive() if revive else ():
        note(f"run {name}: its supervisor was gone; a new one goes on")
    return local


def find(run: str, *, revive: bool = False) -> "tuple[RunClient[Any], Any]":
    """The client and the run of this name, or the only active one."""
    from samite.errors import NotFoundError

    client = engine(revive=revive)
    try:
        return client, client.find(run)
    except NotFoundError as error:
        if run and not chosen().is_cluster:
            raise NotFoundError(
                f"{error} A run on Kubernetes needs its cluster named: samite --context NAME ... (or SAMITE_CONTEXT)."
            ) from None
        raise


HELP = {
    "context": "Kubernetes context to look in; without it, runs of this machine.",
    "namespace": "Kubernetes namespace; default the context's.",
    "kubeconfig": "File with the contexts; default KUBECONFIG, then ~/.kube/config.",
}
ContextOption = Annotated[str, typer.Option("--context", help=HELP["context"], show_default=False)]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help=HELP["namespace"], show_default=False)]
KubeconfigOption = Annotated[str, typer.Option("--kubeconfig", help=HELP["kubeconfig"], show_default=False)]


def add_flags(command_: Any, flags: "list[Any] | None" = None) -> None:
    """Let every command below `command_` take the three flags too: as with kubectl they may stand before or after it."""
    shared = flags or _flag_parameters()
    children = getattr(command_, "commands", {})
    for child in children.values():
        add_flags(child, shared)
    if not children:
        command_.params.extend(shared)


def _flag_parameters() -> list[Any]:
    """The three options as parameters of a command, made by Typer itself."""
    maker = typer.Typer(add_completion=False)

    def remembered(name: str, *more: str) -> Any:
        def remember(value: str) -> str:
            take_flag(name, value)
            return value

        return typer.Option(f"--{name}", *more, callback=remember, expose_value=False, help=HELP[name], show_default=False)

    def flags(
        context: Annotated[str, remembered("context")] = "",
        namespace: Annotated[str, remembered("namespace", "-n")] = "",
        kubeconfig: Annotated[str, remembered("kubeconfig")] = "",
    ) -> None:
        pass

    maker.command()(flags)
    return [parameter for parameter in typer.main.get_command(maker).params if parameter.name in FLAGS]
