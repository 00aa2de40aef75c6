"""Locks of pglock in Python. Comments name the rules of docs/reference/sql-protocol.md.

    with pglock.lock(DSN, "report", ttl=30) as lease, connection, connection.cursor() as cursor:
        lease.guard(cursor)
        cursor.execute("UPDATE reports SET body = 'new'")
"""
import contextlib
import platform
import select
import threading
import time
import uuid

import psycopg2
from psycopg2.extensions import POLL_OK, POLL_READ

ANSWER_TIME, RETRY_EVERY = 5.0, 0.1  # seconds until a call is unanswered, and until it is repeated
POLL_EVERY, REFRESH_EVERY = 0.5, 10.0  # seconds between attempts, without and with LISTEN


class Lost(RuntimeError):
    """The lock is lost, so the work must stop."""


class lock:
    """Holds a lock while a block runs. A thread renews it, and sets the event "lost" at a loss."""

    def __init__(self, dsn, name, *, ttl=30.0, wait=1e9, permits=0, weight=1, listen=False):
        self.dsn, self.name, self.ttl, self.wait, self.listen = dsn, name, ttl, wait, listen
        self.permits, self.weight, self.token, self.release_request = permits, weight, None, None
        self.holder = f"{platform.node()} {threading.get_native_id()}"
        self.client, self.request = f"py_{uuid.uuid4().hex}", str(uuid.uuid4())  # rules 11 and 7
        self.deadline, self.lost, self._done = None, threading.Event(), threading.Event()
        self._connection, self._ticket, self._unanswered = None, None, False
        self._renewal = threading.Thread(target=self._renew, daemon=True)

    def check(self):
        """Raise Lost if the lock is lost."""
        if self.lost.is_set() or time.monotonic() >= self.deadline:
            self.lost.set()  # even if it is renewed now: rule 4
            raise Lost(f"the lock {self.name!r} is lost")

    def guard(self, cursor):
        """Begin a transaction that writes. It fails if the lock is lost: rule 5."""
        self.check()
        cursor.execute("SELECT pglock.guard(%s, %s)", (self.name, self.token))

    def __enter__(self):
        give_up = time.monotonic() + self.wait
        try:
            pause = self._attempt()
            while not self.token:
                if (left := give_up - time.monotonic()) <= 0:
                    raise TimeoutError(f"the lock {self.name!r} was not granted in time")
                listening = [self._connection] if self.listen and self._connection else []
                select.select(listening, [], [], min(pause, left))
                pause = self._attempt(queue=True)
            self._renewal.start()
            return self
        finally:
            granted = self.token
            with contextlib.suppress(psycopg2.Error):
                if self._unanswered and not granted:
                    self._attempt()  # and release below what was granted unnoticed: rule 8
                if self._ticket and (self._unanswered or not granted):
                    self._call("SELECT pglock.leave(%s, %s)", self.name, self.client)  # rule 13
            if not granted:
                self._release()

    def __exit__(self, kind, *_):
        self._done.set()
        self._renewal.join()
        self._release()
        if kind is None and self.lost.is_set():
            self.check()

    def _attempt(self, queue=False):
        """Set the token if the lock is granted. Return how long to wait for the next attempt."""
        try:
            if queue:
                self._ticket, = self._call("SELECT ticket FROM pglock.wait_ticket(%s, %s, %s, %s)",
                                           self.name, self.client, self.holder, self.weight)
            begun = time.monotonic()
            granted, token, remaining = self._call(
                "SELECT granted, token, extract(epoch FROM remaining)::float8"
                " FROM pglock.acquire(%s, %s, %s, '{}', %s, %s, %s, %s)", self.name, self.holder,
                f"{self.ttl} s", self.request, self._ticket, self.permits, self.weight)
        except psycopg2.Error as error:
            if error.pgcode == "PGL12":
                self.request = str(uuid.uuid4())
            elif not isinstance(error, psycopg2.OperationalError) and error.pgcode != "25006":
                raise  # which is not temporary: rule 9
            return RETRY_EVERY
        if granted:  # perhaps by an earlier attempt, so that less than the TTL remains: rule 2
            self.token, self.deadline = token, begun + remaining - min(self.ttl / 10, 5.0)
        # A grant that expires notifies nobody. A ticket for several permits expires after 3 s.
        longest = REFRESH_EVERY if self.listen and self.weight == 1 else POLL_EVERY
        notified, self._connection.notifies = self._connection.notifies, []  # before the answer
        return min(remaining or POLL_EVERY, longest) if queue and not notified else 0.0  # rule 12

    def _renew(self):
        pause = self.ttl / 3
        while not self._done.wait(min(pause, max(0.0, self.deadline - time.monotonic()))):
            begun, pause = time.monotonic(), RETRY_EVERY
            with contextlib.suppress(psycopg2.Error):  # it says nothing about the grant: rule 3
                row = begun < self.deadline and self._call(
                    "SELECT extract(epoch FROM remaining)::float8, release_request"
                    " FROM pglock.renew(%s, %s, %s)",
                    self.name, self.token, f"{self.ttl} s", within=self.deadline - begun)
                if not row or time.monotonic() >= self.deadline:
                    return self.lost.set()
                self.release_request, pause = row[1], self.ttl / 3
                self.deadline = begun + row[0] - min(self.ttl / 10, 5.0)

    def _release(self):
        while self.token:
            with contextlib.suppress(psycopg2.OperationalError):
                self._call("SELECT pglock.release(%s, %s)", self.name, self.token)
                break
            if self.lost.wait(RETRY_EVERY) or time.monotonic() >= self.deadline:
                break  # it expires: rule 6
        if self._connection:
            self._connection.close()

    def _call(self, sql, *args, within=ANSWER_TIME):
        """Return the first row, or None. Raise OperationalError if there is no answer."""
        until = time.monotonic() + min(within, ANSWER_TIME, self.ttl / 3)
        try:
            if not self._connection:
                self._connection = psycopg2.connect(self.dsn, async_=True)
                self._wait(until)
                self._call("SELECT pglock.check_client(4)", within=until - time.monotonic())
                if self.listen:
                    self._call(f'LISTEN "{self.client}"', within=until - time.monotonic())
            cursor = self._connection.cursor()
            cursor.execute(sql, args)
            self._wait(until)  # which also reads notifications
            return cursor.fetchone() if cursor.description else None
        except BaseException:  # also an interrupt: the server may still execute the call
            self._unanswered = True
            if self._connection:
                self._connection.close()
            self._connection = None
            raise

    def _wait(self, until):
        while (state := self._connection.poll()) != POLL_OK:
            ends = ([self._connection], []) if state == POLL_READ else ([], [self._connection])
            if not any(select.select(*ends, [], max(0.0, until - time.monotonic()))):
                raise psycopg2.OperationalError("no answer in time")
