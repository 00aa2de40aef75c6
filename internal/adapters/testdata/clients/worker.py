"""Holds locks by pglock.py for a test, which directs it by lines on the standard input.

usage: worker.py DSN NAME [KEY=VALUE...]

It prints "held TOKEN" once the lock is granted. A line "write" writes under guard: the local check of the lease is
followed by "checked" and by a pause until the next line, as if the process had been suspended there, and the outcome is
"written" or "refused SQLSTATE". The line "end" releases the lock. A loss prints "lost".
"""
import sys
import threading

import psycopg2

import pglock

dsn, name, *settings = sys.argv[1:]
options = {key: float(value) if key in ("ttl", "wait") else int(value)
           for key, value in (setting.split("=") for setting in settings)}


def say(*words):
    print(" ".join(map(str, words)) + "\n", end="", flush=True)  # in one write, of two threads


class Suspended(psycopg2.extensions.cursor):
    """A cursor that waits for a line before a statement of guard."""

    def execute(self, sql, args=None):
        if "guard" in sql:
            say("checked")
            sys.stdin.readline()
        super().execute(sql, args)


def write(lease):
    try:
        with connection, connection.cursor(cursor_factory=Suspended) as cursor:
            lease.guard(cursor)
            cursor.execute("INSERT INTO writes VALUES (%s, %s)", (name, lease.token))
        say("written")
    except pglock.Lost:
        say("refused locally")
    except psycopg2.Error as error:
        say("refused", error.pgcode)


connection = psycopg2.connect(dsn)
try:
    with pglock.lock(dsn, name, **options) as lease:
        def report():
            lease.lost.wait()
            say("lost")

        threading.Thread(target=report, daemon=True).start()
        say("held", lease.token)
        for line in iter(sys.stdin.readline, "end\n"):
            if not line:
                break
            write(lease)
except (TimeoutError, pglock.Lost) as error:
    say(type(error).__name__)
