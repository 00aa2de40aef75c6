-- The ledger, and a log of what happens to grants. The triggers run with the rights of their owner.
CREATE TABLE accounts (
    name    text PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0,
    twin    bigint NOT NULL DEFAULT 0 -- always the same as balance
);

-- The row of the account is locked from the change of the balance to the commit, so "seq" is the
-- order of the commits of a name.
CREATE TABLE entries (
    seq     bigint GENERATED ALWAYS AS IDENTITY,
    name    text NOT NULL,
    op      text PRIMARY KEY,
    token   bigint NOT NULL,
    balance bigint NOT NULL, -- written
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE grant_log (
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    what       text NOT NULL, -- granted, renewed, lowered, ended
    name       text NOT NULL,
    token      bigint NOT NULL,
    weight     int NOT NULL,
    expires_at timestamptz,
    at         timestamptz NOT NULL
);

-- An exclusive grant that becomes one of some permits moves to lock_permits with all of them, and is lowered
-- there. The move itself is neither a grant nor an end.
CREATE FUNCTION log_lock() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.holder IS NULL AND EXISTS (SELECT FROM pglock.lock_permits AS p WHERE p.name = OLD.name AND p.token = OLD.token) THEN
            RETURN NULL;
        ELSIF OLD.holder IS NOT NULL AND (NEW.holder IS NULL OR NEW.token <> OLD.token) THEN
            INSERT INTO public.grant_log (what, name, token, weight, at)
            VALUES ('ended', OLD.name, OLD.token, coalesce(OLD.capacity, 1), greatest(OLD.acquired_at, least(clock_timestamp(), OLD.expires_at)));
        ELSIF OLD.holder IS NOT NULL AND NEW.expires_at IS DISTINCT FROM OLD.expires_at THEN
            INSERT INTO public.grant_log (what, name, token, weight, expires_at, at)
            VALUES ('renewed', NEW.name, NEW.token, coalesce(NEW.capacity, 1), NEW.expires_at, clock_timestamp());
        END IF;
    END IF;
    IF NEW.holder IS NOT NULL AND (TG_OP = 'INSERT' OR OLD.holder IS NULL OR NEW.token <> OLD.token) THEN
        INSERT INTO public.grant_log (what, name, token, weight, expires_at, at)
        VALUES ('granted', NEW.name, NEW.token, coalesce(NEW.capacity, 1), NEW.expires_at, NEW.acquired_at);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION log_permit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO public.grant_log (what, name, token, weight, expires_at, at)
        SELECT 'granted', NEW.name, NEW.token, NEW.weight, NEW.expires_at, NEW.acquired_at
        WHERE NOT EXISTS (SELECT FROM pglock.distributed_locks AS l WHERE l.name = NEW.name AND l.token = NEW.token AND l.holder IS NOT NULL);
    ELSIF TG_OP = 'DELETE' OR OLD.holder IS NOT NULL AND NEW.holder IS NULL THEN
        IF OLD.holder IS NOT NULL THEN
            INSERT INTO public.grant_log (what, name, token, weight, at)
            VALUES ('ended', OLD.name, OLD.token, OLD.weight, greatest(OLD.acquired_at, least(clock_timestamp(), OLD.expires_at)));
        END IF;
    ELSIF NEW.weight <> OLD.weight OR NEW.expires_at IS DISTINCT FROM OLD.expires_at THEN
        INSERT INTO public.grant_log (what, name, token, weight, expires_at, at)
        VALUES (CASE WHEN NEW.weight = OLD.weight THEN 'renewed' ELSE 'lowered' END, NEW.name, NEW.token, NEW.weight, NEW.expires_at, clock_timestamp());
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER log AFTER INSERT OR UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION log_lock();
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON pglock.lock_permits FOR EACH ROW EXECUTE FUNCTION log_permit();
