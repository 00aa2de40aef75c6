package pglock_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// strangers makes operators and functions in the schema public for all pairs of types, with the names that pglock
// uses, wherever pg_catalog has none for exactly these types, as any role may that has CREATE there. The server
// prefers them to pg_catalog's, which are polymorphic or need a cast. Each of them counts its calls in a sequence
// with its name, and fails. A stranger's cast can't take part: it needs a type of his own.
const strangers = `
DO $do$
DECLARE
    types   CONSTANT regtype[] := '{bool,int4,int8,float8,numeric,text,uuid,jsonb,interval,timestamptz,int4[],int8[],text[]}';
    symbols CONSTANT text[] := '{=,<>,<,<=,>,>=,+,-,*,/,%,||,->,->>,?,&&,<@,@>,&,|,<<,~,!~,~~}';
    names   CONSTANT text[] := '{unnest,cardinality,array_agg,array_append,array_length,array_position,array_positions,count,max,min,sum,
        concat,concat_ws,format,to_json,to_jsonb,jsonb_agg,jsonb_build_object,mod,ceil,floor,date_part,string_agg,left,substr,strpos}';
    l regtype; r regtype; s text;
BEGIN
    PERFORM set_config('search_path', 'pg_catalog', true);
    CREATE FUNCTION public.called(what text) RETURNS bool LANGUAGE plpgsql AS $f$
        BEGIN
            EXECUTE pg_catalog.format('SELECT pg_catalog.nextval(%L)', pg_catalog.format('public.%I', what));
            RAISE EXCEPTION 'a stranger''s % was called', what;
        END $f$;
    FOREACH s IN ARRAY names || '{op}'::text[] LOOP
        EXECUTE format('CREATE SEQUENCE public.%I', s);
    END LOOP;
    FOREACH l IN ARRAY types LOOP
        FOREACH s IN ARRAY names LOOP
            CONTINUE WHEN EXISTS (SELECT FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = s AND proargtypes::text = l::oid::text);
            EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS bool LANGUAGE plpgsql AS %L', s, l, format('BEGIN RETURN public.called(%L); END', s));
        END LOOP;
        FOREACH r IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION public.op(%s, %s, OUT bool) LANGUAGE plpgsql AS %L', l, r, format('BEGIN $3 := public.called(%L); END', 'op'));
            FOREACH s IN ARRAY symbols LOOP
                CONTINUE WHEN EXISTS (SELECT FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprname = s AND oprleft = l AND oprright = r);
                EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.op)', s, l, r);
            END LOOP;
            FOREACH s IN ARRAY names LOOP
                CONTINUE WHEN EXISTS (SELECT FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = s AND proargtypes::text = format('%s %s', l::oid, r::oid));
                EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS bool LANGUAGE plpgsql AS %L', s, l, r, format('BEGIN RETURN public.called(%L); END', s));
            END LOOP;
        END LOOP;
    END LOOP;
END $do$`

// TestP82_OperatorsOfAStranger runs the statements of clients, those that packages run in a transaction of the caller,
// and the functions for SQL callers beside operators and functions of a stranger, and none of these is called. The
// control calls one.
func TestP82_OperatorsOfAStranger(t *testing.T) { //nolint:tparallel // what was called is looked at after each
	t.Parallel()
	url := pgtest.Database(t)
	victim := on(t, url)
	f := fixture{t, pgtest.PoolOn(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "pg_catalog" }), victim.schema}
	user := fixture{t, pgtest.UserPool(t, victim.pool, f.schema), f.schema}
	f.sql(strangers)
	f.sql("CREATE TABLE public.stock (id bigint PRIMARY KEY, sku text, quantity integer NOT NULL)")
	f.sql("INSERT INTO public.stock VALUES (1, 'a', 10), (2, 'b', 10)")
	f.sql("CREATE TABLE public.accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)")
	f.sql("GRANT ALL ON public.stock, public.accounts TO PUBLIC")
	f.sql("SELECT pglock.protect('public.accounts', named_by => 'account:{id}')")
	none := func(what string) {
		t.Helper()
		rows, err := f.pool.Query(t.Context(), `SELECT sequencename::text FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL`)
		must(t, err)
		called, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		if len(called) > 0 {
			t.Errorf("%s: a stranger's %q were called", what, called)
		}
	}
	t.Run("clients", func(t *testing.T) { everyStatement(t, fixture{t, f.pool, f.schema}, user.open(), user.open()) })
	none("clients")
	t.Run("transactions", func(t *testing.T) { everyTransaction(t, fixture{t, victim.pool, f.schema}) })
	none("transactions of the caller")
	t.Run("SQL", func(t *testing.T) { everyFunction(t, fixture{t, victim.pool, f.schema}) })
	none("functions for SQL callers")
	through, modes := pooler(t, url)
	pooled := victim.pooled(through, modes[0])
	t.Run("pooler", func(t *testing.T) {
		everyStatement(t, fixture{t, f.pool, f.schema}, pooled.open(pglock.WithPollOnly()), pooled.open(pglock.WithPollOnly()))
	})
	none("clients behind a pooler")
	_, err := victim.pool.Exec(t.Context(), "SELECT 2::bigint * interval '1 s'")
	if err == nil || !value[bool](f, "SELECT is_called FROM public.op") {
		t.Errorf("control: no operator of a stranger was called: %v", err)
	}
}

// everyStatement uses the clients as programs do. The fixture has a safe search_path.
func everyStatement(t *testing.T, f fixture, c, d *pglock.Client) {
	t.Helper()
	ctx := bounded(t, pgtest.Patience)
	held := try(t, c, "a", pglock.WithLabels(map[string]string{"k": "v"}))
	_, err := d.TryAcquire(ctx, "a")
	fails(t, "a held lock", err, pglock.ErrNotAcquired)
	check(t, held.SetLabels(ctx, map[string]string{"k": "w"}))
	check(t, c.RequestRelease(ctx, "a", held.Token(), "reason"))
	got := f.waits(d, "a")
	release(t, held)
	release(t, next(t, got))
	for _, lock := range []pglock.Lock{c.Semaphore("s", 3), c.Writer("w"), c.All(c.Lock("a"), c.Lock("b")), c.All(c.Lock("x"), c.Semaphore("y", 2))} {
		for range 2 {
			release(t, tried(t, lock))
		}
	}
	held = try(t, c, "p")
	both := f.waitsForAll(d, "p", "q")
	release(t, held)
	release(t, next(t, both))
	reader := tried(t, c.Reader("rw"))
	writer, err := reader.TryUpgrade(ctx)
	must(t, err)
	check(t, writer.Downgrade(ctx))
	release(t, writer)
	check(t, c.Resize(ctx, "s", 5))
	check(t, c.Resize(ctx, "s", 3))
	one, two := try(t, c, "one"), try(t, d, "two")
	ended := make(chan error, 2)
	for held, wanted := range map[*pglock.Lease]pglock.Lock{one: c.Lock("two"), two: d.Lock("one")} {
		go func() {
			l, err := wanted.Acquire(held.Context())
			if err == nil { // the other one of the two may get the lock before its own ends
				err = l.Release(ctx)
			}
			ended <- err
		}()
	}
	fails(t, "a deadlock", <-ended, pglock.ErrDeadlock) // one of the two
	release(t, one)
	release(t, two)
	t.Logf("the other call: %v", <-ended) // it gets the lock, or fails as well
	revoked := try(t, c, "r")
	check(t, d.Revoke(ctx, "r", revoked.Token(), "reason"))
	fails(t, "a revoked lease", revoked.Release(ctx), pglock.ErrLost)
	many := make([]*pglock.Lease, 20)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() { many[i] = try(t, c, "many "+strconv.Itoa(i), pglock.WithRenewEvery(100*time.Millisecond)) })
	}
	all.Wait()
	for _, l := range many {
		all.Go(func() { renewed(t, l); release(t, l) })
	}
	all.Wait()
	for _, err := range c.Locks(ctx, inspect.Filter{Pattern: "m*", Labels: map[string]string{"k": "v"}}) {
		check(t, err)
	}
	_, err = c.Get(ctx, "a")
	check(t, err)
	_, err = c.Snapshot(ctx, inspect.Query{})
	check(t, err)
	_, err = c.Prune(ctx, time.Hour)
	check(t, err)
	_, err = once.Do(ctx, c, "once", []byte("request"), func(context.Context, *pglock.Lease) (string, error) { return "done", nil })
	check(t, err)
	job, err := schedule.New(c, "job of "+t.Name())
	must(t, err)
	check(t, job.Once(ctx, time.Unix(1, 0), func(context.Context, *pglock.Lease) error { return nil })) // the wall clock may be wrong
}

// everyTransaction uses what runs in a transaction of the caller, whose search_path stays as it is.
func everyTransaction(t *testing.T, f fixture) {
	t.Helper()
	ctx, c := bounded(t, pgtest.Patience), f.open()
	in := fencing.WithSchema(f.schema)
	l := try(t, c, "account:1")
	both := tried(t, c.All(c.Lock("m"), c.Lock("n")))
	first := c.Key("first")
	for what, fn := range map[string]func(tx pgx.Tx) error{
		"Lock":          func(tx pgx.Tx) error { return advisory.Lock(ctx, tx, first) },
		"Lock, bounded": func(tx pgx.Tx) error { return advisory.Lock(ctx, tx, first, advisory.WithTimeout(time.Minute)) },
		"TryLock":       func(tx pgx.Tx) error { return advisory.TryLockShared(ctx, tx, first) },
		"LockAll": func(tx pgx.Tx) error {
			return advisory.LockAll(ctx, tx, []advisory.Key{first, c.Key("second")}, advisory.WithTimeout(time.Minute))
		},
		"Guard":   func(tx pgx.Tx) error { return errors.Join(l.Guard(ctx, tx), both.Guard(ctx, tx)) },
		"Bind":    func(tx pgx.Tx) error { return errors.Join(l.Bind(ctx, tx), both.Bind(ctx, tx)) },
		"Advance": func(tx pgx.Tx) error { return fencing.Advance(ctx, tx, "resource", l.Token(), in) },
		"protected": func(tx pgx.Tx) error {
			if err := l.Bind(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO public.accounts VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET balance = 2")
			return err
		},
		"once": func(tx pgx.Tx) error {
			_, err := once.Tx(ctx, tx, "key", []byte("request"), func(context.Context) (string, error) { return "done", nil }, once.WithSchema(f.schema))
			return err
		},
		"rows": func(tx pgx.Tx) error {
			_, err := rowlock.Lock(ctx, tx, rowlock.Table{Name: pgx.Identifier{"public", "stock"}, Key: "id"}, []int64{1, 2})
			return err
		},
		"stock": func(tx pgx.Tx) error {
			stock := rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"public", "stock"}, Key: "sku"}, Quantity: "quantity"}
			_, err := rowlock.Reserve(ctx, tx, stock, rowlock.Lines(rowlock.Line[string]{Key: "a", Quantity: "2"}))
			return err
		},
	} {
		for range 2 {
			if err := pgx.BeginFunc(ctx, f.pool, fn); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	session, err := advisory.Acquire(ctx, f.pool, first)
	must(t, err)
	_, err = advisory.Inspect(ctx, f.pool)
	check(t, err)
	check(t, session.Release(ctx))
	batch := &pgx.Batch{}
	batch.Queue("SELECT 1")
	check(t, fencing.Batch(ctx, f.pool, l.Fence(), batch))
	release(t, l)
	release(t, both)
}

// everyFunction calls the functions for SQL callers.
func everyFunction(t *testing.T, f fixture) {
	t.Helper()
	for _, statement := range []string{
		"SELECT pglock.check_client(pglock.pglock_schema_version())",
		"SELECT pglock.acquire('f', 'h', labels => '{\"a\": \"b\"}'), pglock.acquire('g', 'h', permits => 3, weight => 2)",
		"SELECT pglock.acquire('f', 'other', ticket => (SELECT ticket FROM pglock.wait_ticket('f', 'channel', 'other')))",
		"SELECT pglock.wait_ticket('f', 'channel', 'other'), pglock.watch('f', 'watcher')",
		"SELECT pglock.renew(h.name, h.token) FROM pglock.locks_held AS h",
		"SELECT pglock.nested_wait('{f}', '{1}', ARRAY(SELECT token FROM pglock.locks_held WHERE name = 'g'), 'h', md5('1')::uuid)",
		"SELECT pglock.nested_wait('{g}', '{2}', ARRAY(SELECT token FROM pglock.locks_held WHERE name = 'f'), 'h', md5('2')::uuid)",
		"SELECT pglock.end_nested_wait(request) FROM pglock.nested_waits WHERE number > 0",
		"SELECT pglock.guard(h.name, h.token), pglock.check_fence(h.name, h.token), pglock.advance(h.name, h.token) FROM pglock.locks_held AS h",
		"SELECT pglock.bind(h.name, h.token) FROM pglock.locks_held AS h WHERE h.exclusive",
		"SELECT * FROM pglock.locks_held, pglock.locks_waiting, pglock.once_started, pglock.schedules, pglock.protected_tables",
		"SELECT pglock.leave('f', 'channel')",
		"SELECT pglock.release(h.name, h.token) FROM pglock.locks_held AS h",
		"SELECT pglock.advisory_key('a', 'b'), pglock.lift_fencing_tokens('f'), pglock.unsafe_server(), pglock.next_fencing_token()",
	} {
		if _, err := f.pool.Exec(t.Context(), f.named(statement)); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}
