"""A capture proxy: clients call it in place of the engine, and every call that generates is in the store.

What it promises, and where:

1. The intent is durable before the engine is asked; the answer ends for the client only when the entry is durable. An
   answer that cannot be stored gives the client an error before its end (`relay`, `settling`).
2. A call is refused, which costs the rollout nothing, only with proof that nothing was generated; everything else that
   leaves no entry is a loss and masks the rollout (`outcomes`).
3. What generates but cannot be captured is turned away before the engine is asked: no call slips by (`routes`,
   `asking`). What does not generate passes through and never marks a rollout.
4. The client gets what the engine sent, less what only the proxy had asked for (`redaction`).
5. No log line and no metric holds tokens or text.

Read in this order: `settings`, `routes`, `endpoints`, `asking`, `redaction`, `frames`, `reading`, `outcomes`,
`settling`, which touch no library and are what `tokenstore.integrations.asgi` is made of too; then `wire` (httptools),
`http`, `relay`, `web` (Starlette), `running` (uvicorn, hypercorn), `control` and `client` for trainers on other hosts.
"""

from __future__ import annotations

from tokenstore.serve.client import TokenStoreClient
from tokenstore.serve.settings import EngineKind, ProxySettings

__all__ = ["EngineKind", "ProxySettings", "TokenStoreClient"]
