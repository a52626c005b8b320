"""A run's network as a server on this machine: pictures in, JSON out.

Pictures that wait are asked about at once.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from labkit.analysis.network import Classifier, images_at_once
from labkit.analysis.predict import PredictedImages, asking, fitted_file, network_to_ask
from labkit.data.images.pictures import MAX_BYTES
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

HOST = "127.0.0.1"
MOST_WAITING = 512  # pictures; then clients are told to come again
MOST_CLASSES = 100  # of an answer
READERS = 2  # threads that decode pictures
MOST_FILES = 16  # in memory at once; the other clients' files wait in their connections
SECONDS_TO_SEND = 30  # a file; then its client makes room for others

_TOO_LARGE = f"the picture has more than {MAX_BYTES // 2**20} MB; save it smaller"
_Waiting = tuple[NDArray[np.uint8], "asyncio.Future[NDArray[np.float64]]"]


class Server:
    """Collects pictures while the network computes, and asks it about all that wait.

    Args:
        network: to be asked.
        name: of the run.
    """

    def __init__(self, network: Classifier, name: str) -> None:
        self._network, self._name, self._ask = network, name, asking(network)
        self._at_once = min(64, images_at_once(network.manifest.image_shape))
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._reading = asyncio.Semaphore(MOST_FILES)
        self._readers = ThreadPoolExecutor(READERS, "reader")
        self._computing = ThreadPoolExecutor(1, "network")
        self._waiting = 0  # requests that have no answer yet
        self._ask(np.zeros((1, *network.manifest.image_shape), np.uint8))  # compiles

    async def predict(self, request: Request) -> Response:
        """Answer the picture that is the body of a request."""
        top = request.query_params.get("top", "1")
        if not (top.isascii() and top.isdecimal() and 1 <= int(top[:9]) <= MOST_CLASSES):
            return _refused(400, f"top is {top[:40]!r}; allowed: 1 to {MOST_CLASSES}")
        if self._waiting >= MOST_WAITING:
            return _refused(
                503, "too many pictures are waiting; send it again in a second", {"Retry-After": "1"}
            )
        self._waiting += 1
        try:
            return await self._answer(request, int(top))
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            self._waiting -= 1

    async def _answer(self, request: Request, top: int) -> Response:
        if int(request.headers.get("content-length", 0)) > MAX_BYTES:
            return _refused(413, _TOO_LARGE)
        loop, data = asyncio.get_running_loop(), bytearray()
        try:
            async with self._reading:
                async with asyncio.timeout(SECONDS_TO_SEND):
                    async for part in request.stream():
                        data += part
                        if len(data) > MAX_BYTES:
                            return _refused(413, _TOO_LARGE)
                image = await loop.run_in_executor(
                    self._readers, fitted_file, bytes(data), self._network.manifest, MAX_BYTES
                )
        except TimeoutError:
            return _refused(408, f"the picture didn't arrive within {SECONDS_TO_SEND} s; send it again")
        except InputError as error:
            return _refused(400, str(error))
        answer: asyncio.Future[NDArray[np.float64]] = loop.create_future()
        await self._queue.put((image, answer))
        try:
            return JSONResponse(self._told(await answer, top))
        except InputError as error:
            return _refused(500, str(error))

    def _told(self, probabilities: NDArray[np.float64], top: int) -> dict[str, Any]:
        manifest = self._network.manifest
        found = PredictedImages(
            ("",), probabilities[None], manifest.classes, manifest.targets, self._network.step
        )
        return found.row(0, top) | {"run": self._name, "step": self._network.step}

    async def work(self) -> None:
        """Ask the network about what waits, as long as the server runs."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._at_once and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            images = np.stack([image for image, _ in batch])
            try:
                found = await loop.run_in_executor(self._computing, self._ask, images)
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), row in zip(batch, found, strict=True):
                if not answer.done():
                    answer.set_result(row)

    async def page(self, request: Request) -> Response:
        """Return the page to drop a picture on."""
        html = files("labkit.analysis").joinpath("serve.html").read_text("utf-8")
        return HTMLResponse(
            html, headers={"Content-Security-Policy": "default-src 'self' 'unsafe-inline' blob:"}
        )


def _refused(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def application(server: Server, port: int) -> Starlette:
    """Return what answers requests. Other names than this machine's own are refused (DNS rebinding)."""
    tasks: set[asyncio.Task[None]] = set()

    async def ready(request: Request) -> Response:
        return PlainTextResponse("ready")

    async def predict(request: Request) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and origin not in (f"http://{HOST}:{port}", f"http://localhost:{port}"):
            return _refused(403, "pages of other addresses may not ask this server")
        if not tasks:  # in the server's loop, which begins after this function
            tasks.add(asyncio.get_running_loop().create_task(server.work()))
        return await server.predict(request)

    routes = [
        Route("/", server.page),
        Route("/ready", ready),
        Route("/predict", predict, methods=["POST"]),
    ]
    return Starlette(
        routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])]
    )


def serve_network(run: RunDirectory, checkpoint: str, port: int, data_dir: str | None) -> None:
    """Load the network and answer requests until Ctrl-C.

    Raises InputError for a run, checkpoint or port that can't be used.
    """
    import uvicorn

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        raise InputError(f"--port {port} can't be used ({error.strerror}); give another, or 0") from None
    with listening:
        network = network_to_ask(run, checkpoint, data_dir)
        server, port = Server(network, run.name), listening.getsockname()[1]
        listening.listen(MOST_WAITING)  # what comes before the loop runs waits
        address = f"http://{HOST}:{port}/"
        print(f"{run.name}, step {network.step}: {address} (POST a picture to /predict; Ctrl-C ends)")
        config = uvicorn.Config(application(server, port), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
