"""`tritune model …`, `tritune server …`, `tritune setup`: what is needed before anything is measured.

Belongs here: options and what is printed. Never: what the verbs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tritune.cli.frame import MAX_ROWS, MISSED, Json, app, model_app, pairs, say, server_app, show, verb
from tritune.errors import InputError
from tritune.settings import Settings

# --- model ------------------------------------------------------------------------------------------------


@model_app.command("build")
@verb
def model_build(
    model: Annotated[str, typer.Argument(help="The built-in model.")] = "mnist",
    opset: Annotated[int | None, typer.Option(help="ONNX opset (default 17).")] = None,
    simplify: Annotated[bool, typer.Option("--simplify", help="Simplify the graph with onnxslim.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train again on MNIST first (minutes).")] = False,
    as_json: Json = False,
) -> None:
    """Publish a new version of the built-in model."""
    if model != "mnist":
        raise InputError(f"The built-in model is mnist, not {model!r}. Publish a file with `tritune model add FILE`.")
    from tritune import publish

    result = publish.build_mnist(Settings.from_env(), opset=opset, simplify=simplify, retrain=retrain, progress=say)
    show(
        result,
        as_json,
        f"mnist version {result['version']}: opset {result['opset']}, {result['accuracy']:.2%} of the test images "
        f"right, {'loaded' if result['loaded'] else 'not loaded (no server is running)'}",
    )


@model_app.command("add")
@verb
def model_add(
    file: Annotated[Path, typer.Argument(help="An ONNX file.")],
    name: Annotated[str | None, typer.Option(help="The model's name (default: the file's).")] = None,
    as_json: Json = False,
) -> None:
    """Publish any ONNX file."""
    from tritune import publish

    result = publish.add(Settings.from_env(), file, name, progress=say)
    show(
        result,
        as_json,
        f"{result['model']} version {result['version']} published"
        f"{' and loaded' if result['loaded'] else '; no server is running yet'}",
    )


@model_app.command("check")
@verb
def model_check(name: str, as_json: Json = False) -> None:
    """What Triton would refuse, and why."""
    from tritune.repository import ModelRepository

    findings = ModelRepository(Settings.from_env().model_repo).check(name)
    lines = [f"{f.severity}: {f.seen}\n  {f.cause}\n  {f.fix}" for f in findings]
    show({"findings": [f.to_dict() for f in findings]}, as_json, "\n".join(lines) or f"{name}: nothing to complain of.")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(MISSED)


@model_app.command("list")
@verb
def model_list(as_json: Json = False) -> None:
    """The models in the repository."""
    from tritune.repository import ModelRepository

    entries = ModelRepository(Settings.from_env().model_repo).models()
    show(
        {"models": [{"name": e.name, "versions": list(e.versions), "has_config": e.has_config} for e in entries]},
        as_json,
        "\n".join(f"{e.name}: versions {', '.join(map(str, e.versions)) or 'none'}" for e in entries)
        or "No model yet. `tritune model build` publishes MNIST.",
    )


# --- server -----------------------------------------------------------------------------------------------


@app.command("setup")
@verb
def setup(as_json: Json = False) -> None:
    """Set up the embedded Triton's environment (once)."""
    from tritune.servers import embedded

    settings = Settings.from_env()
    embedded.set_up(settings, say)
    show({"embedded_env": str(settings.embedded_env)}, as_json, f"The embedded Triton is in {settings.embedded_env}.")


@server_app.command("start")
@verb
def server_start(
    kind: Annotated[str, typer.Option(help="embedded, or docker.")] = "embedded",
    image: Annotated[
        str | None, typer.Option(help="Docker: NAME:TAG, or a tag of NVIDIA's (default 24.06-py3).")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Docker: all, none, or indices such as 0,1.")] = None,
    port_base: Annotated[int | None, typer.Option(help="First of three ports (default 8000).")] = None,
    as_json: Json = False,
) -> None:
    """Start a Triton with every model of the repository."""
    from tritune import servers
    from tritune.servers import embedded

    kinds = {str(known): known for known in (servers.ServerKind.EMBEDDED, servers.ServerKind.DOCKER)}
    if kind not in kinds:
        raise InputError(
            f"--kind {kind} must be embedded or docker; for a server elsewhere `tritune server attach URL`."
        )
    settings = Settings.from_env()
    if kinds[kind] is servers.ServerKind.EMBEDDED and not embedded.is_set_up(settings):
        say("The embedded Triton is not set up yet; this is done once.")
        embedded.set_up(settings, say)
    status = servers.start(settings, kinds[kind], image=image, gpus=gpus, port_base=port_base, progress=say)
    show(status.to_dict(), as_json, _status_text(status.to_dict()))


@server_app.command("attach")
@verb
def server_attach(
    url: Annotated[str, typer.Argument(help="HOST:PORT or http(s)://HOST:PORT")],
    grpc: Annotated[str | None, typer.Option(help="HOST:PORT of gRPC.")] = None,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT or URL of the metrics.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, sent with every request.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA certificate (PEM) for TLS.")] = None,
    cert: Annotated[Path | None, typer.Option(help="Client certificate (PEM) for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="Client key (PEM) for TLS.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not check the server's certificate.")] = False,
    as_json: Json = False,
) -> None:
    """Use a Triton (or another KServe v2 server) that runs already."""
    from tritune import servers

    tls: dict[str, Any] | None = None
    if ca or cert or key or insecure:
        tls = {
            "ca": str(ca.absolute()) if ca else None,
            "cert": str(cert.absolute()) if cert else None,
            "key": str(key.absolute()) if key else None,
            "verify": not insecure,
        }
    status = servers.attach(
        Settings.from_env(), url, grpc=grpc, metrics=metrics, headers=pairs(header, "--header"), tls=tls, progress=say
    )
    show(status.to_dict(), as_json, _status_text(status.to_dict()))


@server_app.command("status")
@verb
def server_status(as_json: Json = False) -> None:
    """Whether a Triton is running, and where."""
    from tritune import servers

    document = servers.status(Settings.from_env()).to_dict()
    show(document, as_json, _status_text(document))


@server_app.command("logs")
@verb
def server_logs(
    lines: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="How many of the last lines.")] = 200,
    as_json: Json = False,
) -> None:
    """The last lines of the server's log."""
    from tritune import servers

    text = servers.logs(Settings.from_env(), lines)
    show({"log": text}, as_json, text)


@server_app.command("stop")
@verb
def server_stop(as_json: Json = False) -> None:
    """Stop the started Triton, or let go of an attached one."""
    from tritune import servers

    document = servers.stop(Settings.from_env()).to_dict()
    show(document, as_json, _status_text(document))


def _status_text(document: Mapping[str, Any]) -> str:
    parts = [str(document["state"])]
    if document["kind"]:
        what = [str(document["kind"]), *filter(None, [document.get("image")]), f"Triton {document['triton_version']}"]
        parts.append(f"({', '.join(what)})")
    if document["http"]:
        parts.append(f"at http {document['http']}, grpc {document['grpc']}, metrics {document['metrics']}")
    return " ".join(parts) + (f". {document['reason']}" if document.get("reason") else "")
