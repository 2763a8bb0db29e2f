"""The journal of one rollout: synchronous, no event loop, run in worker threads.

Read it in this order: `disk`, `layout`, `lifecycle`, `logfile`, `statefile`, `recovery`, `journal`.
"""
