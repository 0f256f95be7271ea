"""The page of runs, and what it asks for: read-only, for those who know a token, nothing from elsewhere."""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from catchment.errors import CatchmentError, UserError, needs
from catchment.watching.status import client_details, details, one_run, overview

PAGE = Path(__file__).with_name("page.html")
STYLE = Path(__file__).parents[1] / "report" / "style.css"  # so that both look alike
LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
}


def application(place: Path, token: str) -> Any:
    """The ASGI application for the runs of a directory, for those who know the token.

    It is needed on loopback too: other users of the machine can connect, and cannot read the directory.
    """
    with needs("the page of runs", "watch"):
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, JSONResponse, Response
        from starlette.routing import Route

    def answering(find: Callable[[Request], Any]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            if not hmac.compare_digest(request.query_params.get("token", "").encode(), token.encode()):
                return JSONResponse({"error": "the token in the address is missing or wrong"}, 403, HEADERS)
            try:
                found = find(request)
            except (CatchmentError, OSError, KeyError, ValueError) as error:
                return JSONResponse({"error": str(error)}, 404, HEADERS)
            return found if isinstance(found, Response) else JSONResponse(found, headers=HEADERS)

        return answer

    def run(request: Request) -> Path:
        return one_run(place, request.query_params["run"])

    routes = {
        "/": lambda request: HTMLResponse(page(), headers=HEADERS),
        "/runs": lambda request: overview(place),
        "/run": lambda request: details(run(request)),
        "/client": lambda request: client_details(run(request), int(request.query_params["client"])),
    }
    return Starlette(routes=[Route(path, answering(find), methods=["GET"]) for path, find in routes.items()])


def page() -> str:
    """The page, with the style of reports in it."""
    style = STYLE.read_text(encoding="utf-8")
    return PAGE.read_text(encoding="utf-8").replace("/* style.css of reports */", style)


@contextmanager
def watching(place: Path, host: str = LOOPBACK, port: int = 0) -> Iterator[str]:
    """Serve the page of runs meanwhile, in a thread; gives its address. Port 0 is one that is free."""
    with needs("the page of runs", "watch"):
        import uvicorn

    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UserError(f"the page cannot be served at {host}, port {port}: {error.strerror}") from None
    port = listener.getsockname()[1]
    token = os.urandom(16).hex()
    config = uvicorn.Config(
        application(place, token), lifespan="off", ws="none", log_level="error", access_log=False, server_header=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="watch", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{port}/?token={token}"
    finally:
        server.should_exit = True
        thread.join(5)
        listener.close()
