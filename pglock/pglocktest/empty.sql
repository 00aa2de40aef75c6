-- Empties the tables, for the next test. The tokens go on.
DELETE FROM pglock.distributed_locks;
DELETE FROM pglock.lock_permits;
DELETE FROM pglock.lock_waiters;
DELETE FROM pglock.nested_waits;
DELETE FROM pglock.once_keys;
DELETE FROM pglock.fencing_high_water;
DELETE FROM pglock.scheduled_jobs;
