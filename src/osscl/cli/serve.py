"""`osscl serve` and `export`: teach and inspect an agent in the browser; write it as ONNX or Hugging Face files."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.agent import Agent
from osscl.cli.options import Device
from osscl.errors import UserError, require_known

if TYPE_CHECKING:
    from osscl.agent.classifier import ContinualClassifier

SERVER_PACKAGES = ("fastapi", "uvicorn", "multipart")
EXPORT_FORMATS = ("onnx", "hub")


def serve(
    agent: Agent,
    pile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of unlabelled pictures to browse and to teach from.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of labelled test pictures, one folder per class.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but localhost requires a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(help="Token required with every request; generated and printed if needed.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Serve a page to drop photos, look through a pile, name groups, teach and go back. Ctrl-C stops the server."""
    if any(find_spec(name) is None for name in SERVER_PACKAGES):
        raise UserError('osscl serve requires additional packages: pip install "osscl[serve]"')
    from osscl.serve.app import run_server

    run_server(agent, pile, test, host, port, token, device, typer.echo)


def export(
    agent: Agent,
    out: Annotated[Path, typer.Option(metavar="PATH", help="A new file (onnx) or folder (hub).")],
    format: Annotated[str, typer.Option(help="onnx: one graph; hub: a folder in Hugging Face layout.")] = "onnx",
    check: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="For onnx: pictures to check the file with; may be repeated."),
    ] = None,
) -> None:
    """Export an agent as one ONNX file, or as a folder that osscl.load reads and a model hub accepts."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.storage import refuse_to_overwrite

    require_known("format", format, EXPORT_FORMATS)
    if check and format != "onnx":
        raise UserError("--check requires --format onnx; a hub folder stores the agent's numbers unchanged")
    refuse_to_overwrite(out)
    made = ContinualClassifier.load(agent, "cpu")
    if format == "onnx":
        _export_onnx(made, out, check or [])
    else:
        _export_hub(made, agent, out)


def _export_onnx(made: "ContinualClassifier", out: Path, check: list[Path]) -> None:
    from osscl.agent.hub_export import agent_id, exportable
    from osscl.agent.onnx_export import export_onnx, require_exporters
    from osscl.cli.show import quoted
    from osscl.data.folders import list_unlabeled

    model = exportable(made)
    require_exporters()
    files = list_unlabeled(check).files if check else ()
    typer.echo("building the graph and checking it picture by picture; this takes about half a minute")
    agreed = export_onnx(model, agent_id(made), out, files)
    given = min(len(files), agreed.pictures)
    kinds = f"{given} given" + ", the others drawn" * (given < agreed.pictures) if files else "drawn"
    typer.echo(
        f"{out}: checked on {agreed.pictures} pictures ({kinds}); largest difference {agreed.difference:.1e}, "
        f"{agreed.decisions} different decisions"
    )
    typer.echo(f"predict: {quoted('osscl', 'predict', out, 'photo.jpg')}")


def _export_hub(made: "ContinualClassifier", agent: Path, out: Path) -> None:
    from osscl.agent.hub_export import export_hub
    from osscl.cli.show import quoted

    export_hub(made, agent, out)
    typer.echo(f"{out}: config.json, model.safetensors, README.md and the encoder; read the card before you publish it")
    typer.echo(f"predict: {quoted('osscl', 'predict', out, 'photo.jpg')}")
