"""Counts of values by size, from several threads."""

from __future__ import annotations

import threading

from tokenstore.journal.histogram import Histogram


def test_values_of_several_threads() -> None:
    """What several threads count is in its bounds, and nothing is lost."""
    histogram = Histogram((1.0, 2.0))

    def count() -> None:
        for value in (0.5, 1.0, 1.5, 3.0) * 500:
            histogram.observe(value)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    distribution = histogram.read()

    assert distribution.counts == (4000, 2000, 2000)
    assert distribution.total == 12000.0


def test_somebody_is_held_up_in_it() -> None:
    """A thread that is held up while it counts, by a signal handler that waits for the others, does not stop them."""
    histogram = Histogram((1.0,))

    with histogram._guard:
        thread = threading.Thread(target=histogram.observe, args=(0.5,))
        thread.start()
        thread.join()
        distribution = histogram.read()

    assert distribution.counts == (1, 0)
