"""`tokenstore serve`: a proxy before an inference engine that captures every call into a store."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from tokenstore import StoreConfig
from tokenstore.cli.common import EXIT_OK, CommandError, add_output, add_root, run_async
from tokenstore.cli.output import Output
from tokenstore.config import PromptStorage, Sync
from tokenstore.serve.settings import ENGINE_TIMEOUT, MAX_BODY_BYTES, MAX_CALLS, EngineKind, ProxySettings

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Number = TypeVar("Number", int, float)
GRACE = 60.0
"""Most answers of an engine that come at all come within a minute."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Pass requests on to an inference engine and capture every call that generates. Clients use "
        "http://HOST:PORT/rollouts/ID/v1 as their base URL, or the header X-Rollout-Id. An answer ends when its entry "
        "is durable. Runs until SIGINT or SIGTERM and then finishes what is in flight."
    )
    parser = commands.add_parser("serve", help="capture what clients ask an engine", description=about)
    parser.add_argument("--engine", metavar="URL", required=True, help="the engine, http://host:port")
    kinds = get_args(EngineKind)
    parser.add_argument("--engine-kind", choices=kinds, default="vllm", help="what it is (default: vllm)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8100, help="port to listen on, 0 for any (default: 8100)")
    parser.add_argument(
        "--control-token-file",
        metavar="FILE",
        help="turn on the control routes, for trainers on other hosts, with the bearer token in this file",
    )
    _add_limit(parser, "--max-body", "BYTES", MAX_BODY_BYTES, "largest body of a request")
    _add_limit(parser, "--max-calls", "N", MAX_CALLS, "calls in flight; further ones get 503")
    _add_limit(parser, "--engine-timeout", "SECONDS", ENGINE_TIMEOUT, "of silence after which a call is lost")
    _add_limit(parser, "--grace", "SECONDS", GRACE, "to finish what is in flight when stopped")
    _add_store(parser)
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Serve; with `--json` one object says where."""
    try:
        from tokenstore.serve.running import loop_options
        from tokenstore.serve.running import run as serve

        settings = ProxySettings(
            engine=arguments.engine,
            engine_kind=arguments.engine_kind,
            max_body_bytes=arguments.max_body,
            max_calls=arguments.max_calls,
            engine_timeout=arguments.engine_timeout,
            control_token=_token_in(arguments.control_token_file),
        )
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        work = partial(
            serve,
            settings,
            Path(arguments.root),
            config=StoreConfig(sync=arguments.sync, prompt_storage=arguments.prompt_storage),
            backend=arguments.backend,
            host=arguments.host,
            port=arguments.port,
            grace=arguments.grace,
            ready=partial(_say, output, settings),
        )
        run_async(work, backend=arguments.backend, options=loop_options(arguments.backend))
    except (ModuleNotFoundError, ValueError, OverflowError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def _say(output: Output, settings: ProxySettings, url: str) -> None:
    if output.json:
        facts = {"url": url, "engine": settings.engine, "engine_kind": settings.engine_kind}
        output.document({"event": "serving", **facts, "control": settings.control_token is not None})
    else:
        output.text(f"serving {settings.engine} ({settings.engine_kind}) at {url}/rollouts/<id>/v1")
    output.flush()


def _token_in(file: str | None) -> str | None:
    return None if file is None else Path(file).read_text(encoding="utf-8").strip()


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sync",
        choices=get_args(Sync),
        default="file",
        help="what a batch waits for; filesystem is for a disk of the store's own, Linux 5.8 or newer (default: file)",
    )
    parser.add_argument(
        "--prompt-storage",
        choices=get_args(PromptStorage),
        default="shared",
        help="full for a directory that NeMo Gym's own library reads or writes too (default: shared)",
    )


def _add_limit(parser: argparse.ArgumentParser, name: str, unit: str, default: Number, what: str) -> None:
    kind: Callable[[str], float] = type(default)
    parser.add_argument(name, type=kind, metavar=unit, default=default, help=f"{what} (default: {default:g})")
