"""The journal of one rollout: synchronous, no event loop, run in worker threads.

Read it in this order: `disk`, `layout`, `lifecycle`, `turn`, `syncs`, `root`, then `logfile`, `idfile`, `lockfile`,
`statefile`, `held`, then `damage`, `recovery`, `index`, `files`, and last `batch`, `snapshots`, `sections`, `removing`,
`journal`.
"""
