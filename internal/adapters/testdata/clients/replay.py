"""Replays a fixture of the SQL protocol, which stands in the standard input, on a database.

usage: replay.py DSN

testdata/protocol/README.md describes the fixtures. It prints the steps that differ, and their number at the end.
"""
import select
import sys

import psycopg2
from psycopg2 import extensions

# All values are compared as PostgreSQL's text.
OIDS = (16, 20, 23, 25, 1186, 2278, 3802)  # bool, bigint, integer, text, interval, void, jsonb
TEXT = extensions.new_type(OIDS, "TEXT", lambda value, _: value)
PATIENCE = 60.0


class Replay:
    def __init__(self, dsn):
        self.dsn, self.clients, self.steps, self.failures = dsn, {}, 0, 0

    def client(self, name):
        if name not in self.clients:
            connection = psycopg2.connect(self.dsn)
            connection.autocommit = True
            extensions.register_type(TEXT, connection)
            self.clients[name] = connection
        return self.clients[name]

    def execute(self, name, sql):
        """Return the lines of a fixture that describe the outcome."""
        with self.client(name).cursor() as cursor:
            try:
                cursor.execute(sql)
            except psycopg2.Error as error:
                return [f"! {error.pgcode}"]
            if cursor.description is None:
                return []
            rows = [" | ".join(value or "" for value in row) for row in cursor]
            return [f"= {row}".strip() for row in rows] or ["= nothing"]

    def notification(self, name):
        connection = self.client(name)
        while not connection.notifies:
            if not select.select([connection], [], [], PATIENCE)[0]:
                return "none"
            connection.poll()
        notify = connection.notifies.pop(0)
        return f"{notify.channel} {notify.payload}"

    def check(self, step, got, want):
        self.steps += 1
        if got != want:
            self.failures += 1
            print(f"{step}\ngot {got!r}\nwant {want!r}")

    def run(self, text):
        """Send each statement when the next step begins, because its outcome is known then."""
        step, want = None, []
        for line in [*text.splitlines(), "end: "]:
            if not line or line.startswith("#"):
                continue
            if line[0] in "=!":
                want.append(line.strip())
                continue
            if step:
                name, sql = step.split(": ", 1)
                self.check(step, self.execute(name, sql), want)
            step, want = line, []
            name, listens, notification = line.partition("< ")
            if listens and " " not in name:
                self.check(line, self.notification(name), notification)
                step = None


replay = Replay(sys.argv[1])
replay.run(sys.stdin.read())
print(f"{replay.steps} steps, {replay.failures} failures")
