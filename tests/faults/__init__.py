"""The search for a fault after which something acknowledged is lost, or something wrong is delivered.

Reading order: `questions` and `operations` (what a script can do), `scenarios` (the table of scripts), `facts` (what an
answer makes certain or possible), `judging` (a snapshot against the facts), `ledger` (the facts of all rollouts),
`troubles` (what can break), `world` (processes on one disk), `performance` (a script with a trouble), `aftermath` (what
is checked after a crash), `search` (everything times everything). `mutants` shows that the search finds bugs: it puts
each of them in.
"""
