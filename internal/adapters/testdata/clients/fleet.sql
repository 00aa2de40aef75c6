-- What the workers of a mixed fleet write, and what the lock tables show of their order.
CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts VALUES ('a'), ('b');
-- Each write reads the balance first, so that two writers at once lose an update.
CREATE TABLE entries (id bigserial PRIMARY KEY, name text, token bigint, kind text);
-- From when until when a worker knew that it held the lock, in seconds of /proc/uptime, the clock that all share.
CREATE TABLE intervals (name text, token bigint, worker text, kind text, began numeric, seen numeric, PRIMARY KEY (name, token, worker, began));
-- The live waiter that had the smallest ticket when another one was granted the lock.
CREATE TABLE overtaken (name text, token bigint, holder text, head text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION note_overtaken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.overtaken (name, token, holder, head)
    SELECT NEW.name, NEW.token, NEW.holder, w.holder FROM pglock.lock_waiters AS w
    WHERE w.name = NEW.name AND w.state = 'queued' AND w.ticket > OLD.ticket AND w.expires_at > clock_timestamp() AND w.holder <> NEW.holder
      AND w.ticket < CASE WHEN NEW.ticket > OLD.ticket AND NEW.ticket <> w.ticket THEN NEW.ticket ELSE 9223372036854775807 END
    ORDER BY w.ticket LIMIT 1;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_overtaken AFTER UPDATE ON pglock.distributed_locks FOR EACH ROW
    WHEN (NEW.token <> OLD.token AND NEW.holder IS NOT NULL) EXECUTE FUNCTION note_overtaken();
CREATE VIEW holders_at_once AS
    SELECT x.name, x.kind, x.worker, x.token, x.began, x.seen, y.kind AS other_kind, y.worker AS other, y.token AS other_token, y.began AS other_began, y.seen AS other_seen
    FROM intervals AS x JOIN intervals AS y ON x.name = y.name AND (x.token, x.worker) <> (y.token, y.worker)
      AND x.began < y.seen AND y.began < x.seen AND (x.began, x.worker) < (y.began, y.worker);
