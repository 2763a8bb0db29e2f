"""How threads wait for a store: what may come between, and where waiting is refused."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.loops import PATIENCE
from tokenstore import StoreClosedError
from tokenstore.waiting import Latch, check_may_wait, is_own_thread, own_this_thread, run_as_own


class TestLatch:
    """An event that happens once."""

    def test_it_lets_everybody_go_on(self) -> None:
        """All who wait go on when it is set, and who comes later does not wait."""
        latch, passed = Latch(), threading.Semaphore(0)

        def wait() -> None:
            latch.wait()
            passed.release()

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        before = passed.acquire(blocking=False)
        latch.set()
        latch.set()

        assert not before
        assert all(passed.acquire(timeout=PATIENCE) for _ in threads)
        latch.wait()
        assert latch.is_set

    def test_a_signal_handler_waits_too(self) -> None:
        """A signal handler that comes while its thread waits may wait for the same."""
        latch, entered, order = Latch(), threading.Semaphore(0), list[str]()

        def handle(*_: object) -> None:
            entered.release()
            latch.wait()
            order.append("handler")

        def send() -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            entered.acquire(timeout=PATIENCE)
            latch.set()

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            sender = threading.Thread(target=send)
            sender.start()
            latch.wait()
            sender.join()
        finally:
            signal.signal(signal.SIGUSR1, before)

        assert order == ["handler"]


class TestOwnThreads:
    """Threads that work for a store."""

    def test_only_while_it_works_for_a_store(self) -> None:
        """A borrowed thread is a store's while a function runs, also one that raises; then it may wait again."""
        seen = [run_as_own(is_own_thread, stays=False), is_own_thread()]

        def fail() -> None:
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011 - it is the one above
            run_as_own(fail, stays=False)
        check_may_wait()

        assert seen == [True, False]
        assert not is_own_thread()

    @pytest.mark.parametrize("how", ["for good", "as a worker"])
    def test_a_stores_thread_stays_one(self, how: str) -> None:
        """A thread of a store's own is told which one it is and what to do, however often it has worked."""
        problems: list[str] = []

        def work() -> None:
            if how == "for good":
                own_this_thread()
            else:
                run_as_own(lambda: None, stays=True)
            try:
                check_may_wait()
            except StoreClosedError as error:
                problems.append(error.problem)

        thread = threading.Thread(target=work, name="of the store")
        thread.start()
        thread.join()

        assert len(problems) == 1
        assert "own thread 'of the store'" in problems[0]
        assert "Call from a thread of your own" in problems[0]
        check_may_wait()
