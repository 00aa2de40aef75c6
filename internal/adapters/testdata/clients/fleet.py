"""A worker in Python of a mixed fleet, which takes turns at two locks until it is killed.

usage: fleet.py DSN WORKER KIND MODE TTL
"""
import os
import random
import sys
import time

import psycopg2

import pglock

dsn, worker, kind, mode, ttl = sys.argv[1:]


class Unlocked:
    """The control: a lease that is none."""

    token = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def check(self):
        pass

    def guard(self, cursor):
        pass


def uptime():
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])


def turn(connection, name):
    holding = Unlocked() if mode == "unlocked" else pglock.lock(dsn, name, ttl=float(ttl), listen="listening" in kind)
    with holding as lease:
        began = uptime() + 0.01  # which is rounded down
        for _ in range(random.randint(1, 4)):
            for _ in range(random.randint(1, 10)):  # so that a suspension finds it here too
                seen = uptime()
                lease.check()
                time.sleep(0.01)
            with connection, connection.cursor() as cursor:
                cursor.execute("INSERT INTO intervals VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (name, token, worker, began)"
                               " DO UPDATE SET seen = excluded.seen", (name, lease.token, worker, kind, began, max(seen, began)))
            with connection, connection.cursor() as cursor:
                lease.guard(cursor)
                cursor.execute("SELECT balance FROM accounts WHERE name = %s", (name,))
                balance, = cursor.fetchone()
                time.sleep(random.uniform(0, 0.05))
                cursor.execute("UPDATE accounts SET balance = %s WHERE name = %s", (balance + 1, name))
                cursor.execute("INSERT INTO entries (name, token, kind) VALUES (%s, %s, %s)", (name, lease.token, kind))


print("pid", os.getpid(), flush=True)
while True:
    try:
        connection = psycopg2.connect(dsn)
        while True:
            turn(connection, random.choice("ab"))
    except (psycopg2.Error, pglock.Lost) as error:
        print(repr(error), file=sys.stderr)
        time.sleep(0.1)
