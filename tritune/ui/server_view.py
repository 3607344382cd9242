"""The server page's parts: start, attach, endpoints, models, log.

Belongs here: forms and what the server reports. Never: starting a process or sending a request (servers and triton do).
"""

from __future__ import annotations

import streamlit as st

from tritune import servers, ui
from tritune.errors import InputError, TritonRefusedError
from tritune.plan import JobKind
from tritune.servers import ServerKind, ServerStatus, embedded, engine, images
from tritune.settings import DEFAULT_HTTP_PORT
from tritune.ui import model_view, wording

LOG_LINES = 200


def start_form(*, busy: bool) -> None:
    """Set up or start a Triton on this machine: the embedded one, or a container."""
    st.subheader("On this machine")
    kinds = {"Without Docker": embedded_form, "In a Docker container": docker_form}
    chosen = st.segmented_control("Which Triton", list(kinds), default="Without Docker", required=True)
    kinds[chosen or "Without Docker"](busy)


def embedded_form(busy: bool) -> None:
    """Set up or start the embedded Triton."""
    if reason := embedded.unsupported_reason():
        st.warning(wording.plain(reason), icon=":material/block:")
        return
    if not embedded.is_set_up(ui.settings()):
        st.markdown(
            "The real Triton 2.51 in a folder of its own, without Docker or a GPU. "
            "The set-up downloads about 1 GB once and takes a minute or two."
        )
        if st.button("Set up the embedded Triton", type="primary", disabled=busy):
            ui.submit(JobKind.SETUP, {})
        return
    st.markdown("The embedded Triton is set up. It starts in a few seconds and loads every model of the repository.")
    base = _first_port()
    if st.button("Start Triton", type="primary", icon=":material/play_arrow:", disabled=busy):
        ui.submit(JobKind.SERVER_START, {"kind": str(ServerKind.EMBEDDED), "port_base": base})


def docker_form(busy: bool) -> None:
    """Start a container: which image, which GPUs."""
    if reason := _docker_reason():
        st.warning(wording.plain(reason), icon=":material/block:")
        return
    image = st.selectbox(
        "Image",
        [images.DEFAULT_IMAGE, images.CPU_IMAGE],
        accept_new_options=True,
        help="NVIDIA's with any tag, or the project's own CPU image (docs/docker.md). What is not here is pulled.",
    )
    limits = images.onnx_limits(image)
    st.caption(
        f"ONNX Runtime {limits.onnxruntime} takes models up to opset {limits.opset} and IR version {limits.ir_version}."
        if limits
        else "Which ONNX Runtime it has is not known before it is here."
    )
    names = {"All that Docker has": None, "None": "none", "Some": ""}
    gpus = names[st.segmented_control("GPUs", list(names), default="All that Docker has", required=True) or "None"]
    if gpus == "":
        gpus = st.text_input("Indices of the GPUs", placeholder="0,1", width=160)
    base = _first_port()
    if st.button("Start Triton", type="primary", icon=":material/play_arrow:", disabled=busy):
        wanted = {"image": images.check_image(image), "gpus": None if gpus is None else images.parse_gpus(gpus)}
        ui.submit(JobKind.SERVER_START, {"kind": str(ServerKind.DOCKER), "port_base": base, **wanted})


@st.cache_data(ttl=5, show_spinner=False)
def _docker_reason() -> str | None:
    return engine.is_reachable()


def _first_port() -> int | None:
    """The first of three ports; None where it is the usual one."""
    port = st.number_input(
        "First port",
        1024,
        65533,
        DEFAULT_HTTP_PORT,
        width=160,
        help="HTTP, then gRPC and metrics on the next two. Where one is taken the next free three are used.",
    )
    return int(port) if int(port) != DEFAULT_HTTP_PORT else None


def attach_form(*, busy: bool) -> None:
    """Attach to a server that somebody else runs."""
    st.subheader("Somewhere else")
    with st.form("attach", border=False):
        url = st.text_input(
            "Address", placeholder="http://gpu-box:8000", help="Any server with the KServe v2 protocol."
        )
        with st.expander("gRPC, metrics, headers, TLS"):
            grpc = st.text_input("gRPC address", placeholder="gpu-box:8001")
            metrics = st.text_input("Metrics address", placeholder="http://gpu-box:8002/metrics")
            headers = st.text_area("Headers", placeholder="Authorization: Bearer …", help="One a line, name: value.")
            ca = st.text_input("CA certificate file", help="For https with a private certificate authority.")
            cert = st.text_input("Client certificate file", help="Where the server asks for one.")
            key = st.text_input("Client key file")
            verify = st.checkbox("Check the server's certificate", value=True)
        pressed = st.form_submit_button("Attach", disabled=busy)
    if pressed:
        with ui.guard():
            with st.spinner("Looking for the server…"):
                files = {"ca": ca.strip(), "cert": cert.strip(), "key": key.strip()}
                tls = {name: path for name, path in files.items() if path} | ({} if verify else {"verify": False})
                servers.attach(
                    ui.settings(),
                    url.strip(),
                    grpc=grpc.strip() or None,
                    metrics=metrics.strip() or None,
                    headers=parse_headers(headers),
                    tls=tls or None,
                )
            ui.forget()
            st.rerun()


def parse_headers(text: str) -> dict[str, str]:
    """`name: value` a line → mapping. Raises InputError for a line without a colon."""
    headers = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise InputError(f"The header line {line!r} has no colon. Write one header a line, as name: value.")
        headers[name.strip()] = value.strip()
    return headers


def endpoints(status: ServerStatus) -> None:
    """Where the server answers and what it can do."""
    ends = status.endpoints
    if ends is None:
        return
    rows = {
        "State": f"{status.state} ({status.kind})",
        "Version": f"Triton {status.triton_version}" if status.triton_version else "not reported",
        "HTTP": ends.http,
        "gRPC": ends.grpc or "not available",
        "Metrics": ends.metrics or "not available",
        "Model control": _ability(status.control),
        "Statistics": _ability(status.statistics),
    }
    if status.pid is not None:
        rows["Process"] = f"{status.pid}, started {wording.ago(status.started_at)}"
    if status.container is not None:
        rows["Image"] = str(status.image)
        rows["GPUs"] = str(status.gpus)
        rows["Container"] = f"{status.container[:12]}, started {wording.ago(status.started_at)}"
    cells = {name: wording.plain(text) for name, text in rows.items()}
    left, right = st.columns(2)
    with left:
        st.table(cells, border="horizontal", alt="Endpoints of the server")
    if ends.control:
        with right.container(border=True):
            st.markdown("**The header that model control asks for**")
            st.code(": ".join(ends.control), language=None, wrap_lines=True)
            st.caption(
                "Without it any web page open on this machine could load and unload models. "
                "Send it with requests to `/v2/repository`; inference needs no header."
            )


def _ability(can: bool | None) -> str:
    return {True: "available", False: "not available", None: "not known"}[can]


def stop() -> None:
    """Stop the server, or let go of one that somebody else runs."""
    with st.spinner("Stopping…"):
        servers.stop(ui.settings())
    ui.forget()
    st.rerun()


def models(*, control: bool) -> None:
    """Every model that the server knows or the repository holds, with load and unload."""
    try:
        states = model_view.served_states()
    except TritonRefusedError as error:
        st.caption(f"This server does not list its models: {wording.plain(error.reason)}")
        return
    names = sorted({*states, *(entry.name for entry in ui.repository().models())})
    if not names:
        ui.empty("The server has no model.", "pages/model.py", "Build or add a model")
        return
    busy = ui.active() is not None
    for name in names:
        state = states.get(name, "not loaded")
        ready = state == "ready"
        with st.container(horizontal=True, vertical_alignment="center", border=True):
            color = "green" if ready else "gray" if state in ("not loaded", "unavailable") else "orange"
            st.markdown(f"**{wording.plain(name)}** :{color}-badge[{wording.plain(state)}]", width="stretch")
            if control and st.button("Load again" if ready else "Load", key=f"load_{name}", disabled=busy):
                ui.submit(JobKind.LOAD_MODEL, {"model": name})
            if control and st.button("Unload", key=f"unload_{name}", disabled=busy or not ready):
                ui.submit(JobKind.UNLOAD_MODEL, {"model": name})
    for kind in (JobKind.LOAD_MODEL, JobKind.UNLOAD_MODEL):
        ui.outcome(ui.last(kind))
    if not control:
        st.caption("This server does not let its models be loaded or unloaded from outside.")


def log(*, follow: bool) -> None:
    """The end of the server's log, live while the server runs and the reader wants it."""
    live = follow and st.toggle("Follow the log", value=False)

    def draw() -> None:
        text = servers.logs(ui.settings(), LOG_LINES)
        if text.strip():
            with st.container(height=320, autoscroll=True):
                st.code(text, language=None)
            is_live = ui.server_status().container is not None
            source = "the container" if is_live else str(ui.settings().server_log)
            st.caption(f"The last {LOG_LINES} lines, from {wording.plain(source)}.")
        else:
            st.markdown("The log is empty: no server has been started here yet.")

    ui.live(draw, running=live)
