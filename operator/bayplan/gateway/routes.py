"""Paths and their handlers: what clients may ask, and the one place where refusals become answers."""

import logging
import re
import traceback
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from bayplan.gateway.bodies import check_length
from bayplan.gateway.directory import Directory
from bayplan.gateway.generations import Generations
from bayplan.gateway.listener import Work
from bayplan.gateway.outcomes import Outcomes
from bayplan.gateway.pools import Pool
from bayplan.gateway.refusals import RefusalCode, Refused
from bayplan.gateway.requests import Api

logger = logging.getLogger(__name__)

UNDER_MODEL = "/models/{namespace}/{name}"
_SERVED = re.compile(r"(/models/[^/]+/[^/]+)?/v1/(?P<api>models|completions|chat/completions)")
Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes:
    """The client's surface."""

    def __init__(
        self, *, directory: Directory, generations: Generations, outcomes: Outcomes, most_body_bytes: int
    ) -> None:
        self._directory = directory
        self._generations = generations
        self._outcomes = outcomes
        self._most_body_bytes = most_body_bytes
        self.draining = False
        """Refuse every new request before its body is read."""
        self.work = Work()

    def application(self) -> web.Application:
        """Build the application. Bodies are bounded by their reader, not by aiohttp's own limit."""
        app = web.Application(client_max_size=0)
        for api in Api:
            for prefix in ("", UNDER_MODEL):
                handler = self._guarded(self._generation(api))
                app.router.add_post(prefix + api.value, handler, expect_handler=self._expect)
        for prefix in ("", UNDER_MODEL):
            app.router.add_get(f"{prefix}/v1/models", self._guarded(self._models), allow_head=False)
        app.router.add_route("*", "/{any:.*}", self._guarded(self._nothing))
        return app

    # -- handlers

    def _generation(self, api: Api) -> Serve:
        async def serve(request: web.Request) -> web.StreamResponse:
            return await self._generations.serve(request, api, self._named_by_path(request))

        return serve

    async def _models(self, request: web.Request) -> web.Response:
        self._generations.tenants.identify(request.headers.get("Authorization"))
        named = self._named_by_path(request)
        pools = [named] if named is not None else sorted(self._directory, key=lambda pool: pool.model.key)
        body = {"object": "list", "data": [self._card(pool) for pool in pools]}
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    def _card(self, pool: Pool) -> dict[str, object]:
        model = pool.model
        return {
            "id": f"{model.key.namespace}/{model.served_name}",
            "object": "model",
            "created": model.created_unix,
            "owned_by": "bayplan",
            "root": model.served_name,
            "max_model_len": pool.max_model_len,
            "ready": pool.ready,
        }

    async def _nothing(self, request: web.Request) -> web.Response:
        known = _SERVED.fullmatch(request.rel_url.raw_path)
        if known is not None:
            wanted = "GET" if known["api"] == "models" else "POST"
            raise Refused(RefusalCode.METHOD_NOT_ALLOWED, f"this path takes {wanted}")
        raise Refused(
            RefusalCode.PATH_NOT_FOUND,
            "paths are /v1/models, /v1/completions, /v1/chat/completions, and these under /models/NAMESPACE/NAME",
        )

    # -- around them

    def _named_by_path(self, request: web.Request) -> Pool | None:
        match = request.match_info
        return self._directory.at(match["namespace"], match["name"]) if "namespace" in match else None

    def _guarded(self, serve: Serve) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            connection = request.transport
            self.work.begin(connection)
            try:
                if self.draining:
                    raise Refused(RefusalCode.DRAINING, "this gateway is shutting down; another one answers")  # noqa: TRY301
                return await serve(request)
            except Refused as refused:
                self._outcomes.refusals[refused.code] += 1
                answer = refused.response()
                if self.draining or not request.content.at_eof():
                    answer.force_close()
                return answer
            except ConnectionError:
                raise  # nobody is left to answer
            except Exception as error:
                # Where, not what: a message could quote the request.
                where = "".join(traceback.format_tb(error.__traceback__))
                logger.error("%s in %s\n%s", type(error).__name__, request.rel_url.raw_path[:80], where)  # noqa: TRY400
                self._outcomes.refusals[RefusalCode.INTERNAL] += 1
                return Refused(RefusalCode.INTERNAL, "the gateway failed on this request").response()
            finally:
                self.work.end(connection)

        return handler

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """Answer `Expect: 100-continue`: what will be refused by its length is not sent at all."""
        if request.headers.get("Expect", "").lower() != "100-continue":
            return Refused(RefusalCode.INVALID_REQUEST, "Expect: only 100-continue is known").response()
        try:
            check_length(request, self._most_body_bytes)
        except Refused as refused:
            self._outcomes.refusals[refused.code] += 1
            return refused.response()
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None
