"""The search for a fault after which something acknowledged is lost, or something wrong is delivered.

Reading order: `operations` (what a script can do), `scenarios` (the table of scripts), `facts` (what an operation makes
certain or possible), `judging` (a snapshot against the facts), `ledger` (the facts of all rollouts), `troubles` (what
can break), `world` (processes on one disk), `aftermath` (what is checked after a crash), `search` (everything times
everything). `test_mutants` shows that the search finds bugs: it puts each of them in.
"""
