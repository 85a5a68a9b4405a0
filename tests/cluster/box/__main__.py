"""The box by hand: `python tests/cluster/box up`, then break it. `python tests/cluster/box --help` lists the commands."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from box.binaries import Binaries, MissingToolError
from box.cluster import BoxBusyError, Cluster, guard, remains, sweep
from box.folders import Folders
from box.images import own_images
from box.processes import Started
from box.requirements import debian_packages, missing_for_building, problems

BREAKAGES = {
    "kill": "power cut",
    "partition": "pull the network cable",
    "heal": "put the cable back, undo cut-api",
    "cut-api": "the node loses the API server, its pods keep their network",
    "hang": "freeze every process of the node",
    "unhang": "let a hung node go on",
    "pause-kubelet": "stop the kubelet alone",
    "resume-kubelet": "let it go on",
}


def main(words: list[str]) -> int:
    """Run one command; its exit status."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `up` tidies up
    try:
        return _run(options)
    except (MissingToolError, BoxBusyError, TimeoutError, RuntimeError, ValueError) as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    folders = Folders.of_user()
    match options.command:
        case "build":
            return _build(frozenset(options.also))
        case "packages":
            print(" ".join(debian_packages()))
        case "check":
            found = problems()
            print("\n".join(found) or "a box can run here")
            return int(bool(found))
        case "up":
            if found := problems():
                print("\n".join(found), file=sys.stderr)
                return 1
            cluster = Cluster.up(nodes=options.nodes, fast=not options.slow, owner=None, say=print, patience_s=options.wait)
            _add(cluster, options)
            print(
                f"export KUBECONFIG={cluster.kubeconfig}\nexport PATH={cluster.binaries.of('kubernetes')}:{cluster.binaries.path('helm').parent}:$PATH"
            )
        case "down":
            sweep(folders)
            left = remains(folders)
            print("\n".join(left) or "nothing is left")
            return int(bool(left))
        case "guard":
            guard(Started(options.pid, options.ticks), folders)
        case _:
            return _disturb(Cluster.attach(), options)
    return 0


def _disturb(cluster: Cluster, options: argparse.Namespace) -> int:
    match options.command:
        case "start":
            print(f"node{options.node} Ready after {cluster.start_node(options.node):.1f} s")
        case "exec":
            node = cluster.node(options.node)
            os.execvp("nsenter", [*node.inside(), *(options.words or ["bash"])])
        case "restart-api":
            print(f"ready {cluster.restart_api_server(down_for_s=options.down_for):.1f} s after its start")
        case "compact":
            print(f"etcd's history before revision {cluster.control_plane.compact_etcd()} is gone")
        case "clock":
            cluster.set_clock(options.node, off_s=options.off)
        case "load":
            cluster.load_image(options.archive)
        case "logs":
            cluster.collect(options.folder)
            print(f"everything is in {options.folder}")
        case "pause-kubelet" | "resume-kubelet":
            cluster.node(options.node).pause_kubelet(paused=options.command.startswith("pause"))
        case name:
            getattr(cluster.node(options.node), name.replace("-", "_"))()
    return 0


def _build(also: frozenset[str]) -> int:
    if absent := missing_for_building():
        print(f"Debian packages are missing. First: apt-get install --no-install-recommends {' '.join(absent)}", file=sys.stderr)
        return 1
    begun_s, binaries = time.monotonic(), Binaries(Folders.of_user())

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun_s:5.0f} s  {text}", flush=True)

    binaries.build(say, only=also)
    own_images(binaries, say)
    say(f"all tools are in {binaries.folders.cache}; Go's build caches are no longer needed (go clean -cache -modcache)")
    return 0


def _add(cluster: Cluster, options: argparse.Namespace) -> None:
    if options.kuberay:
        from box.kuberay import apply_newest_crds, install

        install(cluster.kubectl, cluster.binaries)
        apply_newest_crds(cluster.kubectl)
        print("KubeRay is ready")
    if options.s3:
        from box.object_store import start

        store = start(cluster)
        print(f"S3 for pods {store.inside}, from here {store.outside}, keys {store.access_key} {store.secret_key}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="box", description="A real Kubernetes cluster on this machine, for tests. See tests/cluster/README.md."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build the tools, once (make cluster-tools)")
    build.add_argument("--also", action="append", default=[], metavar="NAME", help="an optional component as well: prometheus")
    commands.add_parser("packages", help="print the Debian packages that a box may want")
    commands.add_parser("check", help="say what is missing for a box")
    up = commands.add_parser("up", help="bring a box up; it stays until `down`")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--wait", type=float, default=20, metavar="SECONDS", help="how long to wait for another box to go")
    up.add_argument("--slow", action="store_true", help="Kubernetes' own failure timings instead of fast ones")
    up.add_argument("--kuberay", action="store_true", help="install KubeRay as well")
    up.add_argument("--s3", action="store_true", help="start an S3 server as well")
    commands.add_parser("down", help="take the box down and remove every trace of it")
    for name, text in BREAKAGES.items():
        commands.add_parser(name, help=text).add_argument("node", type=int)
    commands.add_parser("start", help="power a killed node on").add_argument("node", type=int)
    inside = commands.add_parser("exec", help="run a command inside a node")
    inside.add_argument("node", type=int)
    inside.add_argument("words", nargs=argparse.REMAINDER)
    restart = commands.add_parser("restart-api", help="restart the API server")
    restart.add_argument("--down-for", type=float, default=0, metavar="SECONDS")
    commands.add_parser("compact", help="throw etcd's history away")
    clock = commands.add_parser("clock", help="put the clock of a node's new containers wrong")
    clock.add_argument("node", type=int)
    clock.add_argument("off", type=float, metavar="SECONDS")
    commands.add_parser("load", help="import an image archive on every node").add_argument("archive", type=Path)
    commands.add_parser("logs", help="collect everything into a folder").add_argument("folder", type=Path)
    watch = commands.add_parser("guard")
    watch.add_argument("pid", type=int)
    watch.add_argument("ticks", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
