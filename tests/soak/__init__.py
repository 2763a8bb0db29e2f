"""A long run of everything at once, with kills and power cuts; `python -m tests.soak --minutes 10 --seed 1`.

Four processes (asyncio, uvloop, trio, and blocking twins on threads) use the same rollouts of one directory. The parent
kills them at random and starts them again, and at the end of each round kills all, or cuts the power of the file system
that they write to. What they asked for and what was acknowledged they say through pipes, with the times, so that the
parent knows what must be there, what may be, and what must not. After each round it recovers, reads and judges.

The schedule (who is killed and when, what each task asks for) depends on the seed alone; how the processes interleave
does not.
"""
