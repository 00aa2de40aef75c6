package backend_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// driver is one of the implementations that answer in the same way.
type driver struct {
	name string
	// empty returns a function that returns tables without rows, for a case, once the one before is
	// over.
	empty  func(t *testing.T) func() tables
	lacks  map[string]string // operations that it does not have, and why
	mute   *regexp.Regexp    // parts of answers that it does not tell
	bubble bool              // of package synctest, where its time stands still
}

// tables are those of a driver, and what is done to them beside the table's own methods.
type tables struct {
	table   backend.Table
	schema  string
	open    func(life context.Context) backend.Table // of another client
	begin   func(ctx context.Context) (pgx.Tx, error)
	guard   func(ctx context.Context, tx fencing.Tx, f fencing.Fence) error
	expire  func(ctx context.Context, name string, token fencing.Token) error
	advance func(ctx context.Context, d time.Duration) error
}

var drivers = []driver{
	{name: "server", empty: server(newTable)},
	{name: "server, by the fast paths", empty: server(func(life context.Context, pool *pgxpool.Pool, name string) backend.Table {
		return fastFirst{newTable(life, pool, name)}
	})},
	{name: "fake", empty: fake(func(s *memory.Store) backend.Table { return s }), lacks: noDatabase, bubble: true},
	{name: "fake, by the fast paths", empty: fake(func(s *memory.Store) backend.Table { return fastFirst{s} }), lacks: noDatabase, bubble: true},
	{
		name: "SQL protocol", empty: server(newProtocol),
		lacks: protocolLacks, mute: regexp.MustCompile(`^(notified|invalid|free|taken|taken for .*|overdue)$`),
	},
}

// noDatabase are the operations that memory does not need.
var noDatabase = map[string]string{
	"Send":                     "it has no SQL",
	"Prune":                    "it keeps its rows",
	"LiftTokens":               "it loses no tokens",
	"DeleteDeadRows":           "it keeps its rows",
	"Join, without a listener": "its queues have no overflow list",
}

// newTable returns the table of a client on a server.
func newTable(life context.Context, pool *pgxpool.Pool, name string) backend.Table {
	l := link.New(life, pool.Config(), link.Config{Schema: name, MaxConns: 2, Logger: slog.New(slog.DiscardHandler)})
	return struct {
		*leasetable.Table
		*link.Link
	}{leasetable.New(name, slowly{l, slowClock(name)}), l}
}

// slowly sends statements for which the time hardly passes.
type slowly struct {
	*link.Link
	clock *strings.Replacer
}

func (s slowly) Send(ctx context.Context, st leasetable.Statement) (sent time.Time, err error) {
	st.SQL = s.clock.Replace(st.SQL)
	return s.Link.Send(ctx, st)
}

// slowClock makes SQL read a clock on which a microsecond passes with each look: a case answers the same however long
// it takes, and no two times are the same. The steps "time" let more pass, and make all rows older.
func slowClock(name string) *strings.Replacer {
	now := "(timestamptz '2030-01-01 00:00:00+00' + nextval(" + schema.Literal(schema.Quote(name)+".looks") + ") * interval '1 us')"
	return strings.NewReplacer("pg_catalog.clock_timestamp()", now, "clock_timestamp()", now)
}

// slowDown makes the functions, views and defaults of a schema read that clock. CASE keeps the server from describing what
// another test drops meanwhile.
func slowDown(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	locktest.Exec(t, pool, "CREATE SEQUENCE "+schema.Quote(name)+".looks")
	for _, definition := range locktest.Scan[[]string](t, pool, `SELECT array_agg(d) FROM (
		SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace($1) AND p.prosrc ~ 'clock_timestamp'
		UNION ALL
		SELECT format('CREATE OR REPLACE VIEW %s %s AS %s', c.oid::regclass, 'WITH (' || c.reloptions[1] || ')', pg_get_viewdef(c.oid))
		FROM pg_class AS c WHERE CASE WHEN c.relnamespace = to_regnamespace($1) AND c.relkind = 'v' THEN pg_get_viewdef(c.oid) ~ 'clock_timestamp' END
		UNION ALL
		SELECT format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', c.oid::regclass, a.attname, pg_get_expr(d.adbin, c.oid))
		FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE CASE WHEN c.relnamespace = to_regnamespace($1) THEN pg_get_expr(d.adbin, c.oid) ~ 'clock_timestamp' END) AS readers (d)`, schema.Quote(name)) {
		if head, body, ok := strings.Cut(definition, "\nAS $function$"); ok { // the server's quotes may be in the name of the schema
			definition = head + "\nAS $definition$" + strings.TrimSuffix(strings.TrimSpace(body), "$function$") + "$definition$"
		}
		locktest.Exec(t, pool, slowClock(name).Replace(definition))
	}
}

// fastFirst tries the fast path first, as a client does.
type fastFirst struct{ backend.Table }

func (f fastFirst) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	grants, err := f.AcquireFast(ctx, batch)
	for i, g := range grants {
		if err == nil && g.Outcome != leasetable.Granted {
			var rest []leasetable.Grant
			rest, err = f.Table.AcquireFull(ctx, batch[i:i+1])
			grants[i] = rest[0]
		}
	}
	return grants, err
}

func (f fastFirst) AcquireSlots(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
	if r.Permits.Any() || r.All != nil {
		if grants, err := f.AcquireFast(ctx, []*leasetable.Request{r}); err != nil || grants[0].Outcome == leasetable.Granted {
			return grants[0], err
		}
	}
	return f.Table.AcquireSlots(ctx, r)
}

// fake returns the driver of a fake.
func fake(of func(*memory.Store) backend.Table) func(t *testing.T) func() tables {
	return func(t *testing.T) func() tables {
		t.Helper()
		return func() tables {
			s := memory.NewServer()
			store := s.Connect(context.Background()) // that of t is not one of its bubble
			return tables{
				table: of(store), schema: schema.Default, begin: store.Begin, guard: fencing.Check,
				open:    func(life context.Context) backend.Table { return of(s.Connect(life)) },
				expire:  func(_ context.Context, name string, token fencing.Token) error { s.Expire(name, token); return nil },
				advance: func(_ context.Context, d time.Duration) error { s.Advance(d); return nil },
			}
		}
	}
}

// server returns the driver of tables on a server, whose time passes and whose rows go as in
// package pglocktest.
func server(of func(life context.Context, pool *pgxpool.Pool, name string) backend.Table) func(t *testing.T) func() tables {
	return func(t *testing.T) func() tables {
		t.Helper()
		pool := pgtest.Pool(t)
		name := pgtest.Schema(t, pool)
		slowDown(t, pool, name)
		life, end := context.WithCancel(context.Background())
		table := of(life, pool, name)
		t.Cleanup(func() {
			end()
			ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
			defer cancel()
			table.Close(ctx)
		})
		run := func(ctx context.Context, file string, args ...any) error {
			text, err := os.ReadFile("../../pglocktest/" + file)
			if err != nil {
				return err
			}
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				for statement := range strings.SplitSeq(slowClock(name).Replace(schema.Render(string(text), name)), ";\n") {
					if _, err := tx.Exec(ctx, statement, args...); err != nil {
						return err
					}
				}
				return nil
			})
		}
		all := tables{
			table: table, schema: name, begin: pool.Begin, guard: fencing.Check,
			open: func(life context.Context) backend.Table { return of(life, pool, name) },
			expire: func(ctx context.Context, name string, token fencing.Token) error {
				return run(ctx, "expire.sql", name, int64(token))
			},
			advance: func(ctx context.Context, d time.Duration) error { return run(ctx, "advance.sql", d) },
		}
		if p, ok := table.(protocol); ok {
			all.guard = p.guard
		}
		return func() tables {
			locktest.OK(t, run(t.Context(), "empty.sql"))
			return all
		}
	}
}

// TestDrivers runs the cases of testdata on each driver.
func TestDrivers(t *testing.T) {
	t.Parallel()
	groups := readScripts(t)
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			empty := d.empty(t)
			for _, group := range slices.Sorted(maps.Keys(groups)) {
				t.Run(group, func(t *testing.T) {
					for _, c := range groups[group] {
						if d.has(c) {
							t.Run(c.title, func(t *testing.T) { d.run(t, func(t *testing.T) { t.Helper(); runScript(t, d, c, empty()) }) })
						}
					}
				})
			}
		})
	}
}

// has reports whether the driver has all operations of a case.
func (d driver) has(c script) bool {
	return !slices.ContainsFunc(c.steps, func(s *step) bool { return d.lacks[s.operation()] != "" })
}

// run runs a test of the driver, whose time does not pass meanwhile.
func (d driver) run(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if d.bubble {
		synctest.Test(t, test)
	} else {
		test(t)
	}
}

func runScript(t *testing.T, d driver, c script, empty tables) {
	t.Helper()
	w := newWorld(empty)
	defer w.close()
	for _, s := range c.steps {
		if got := w.say(t.Context(), s); !d.expects(s, got) {
			t.Errorf("%s\n\tgot %q", s.line, got)
		}
	}
}

// expects reports whether a step wants that answer of the driver.
func (d driver) expects(s *step, got string) bool {
	if !s.asks {
		return strings.HasPrefix(got, verbs[s.verb].usual) && !strings.HasPrefix(got, "error")
	}
	return d.told(s.want) == d.told(got)
}

// told returns the parts of an answer that the driver tells.
func (d driver) told(answer string) string {
	if d.mute == nil {
		return answer
	}
	return strings.Join(slices.DeleteFunc(strings.Split(answer, ", "), d.mute.MatchString), ", ")
}

// TestEveryOperationHasACase: so has each method of backend.Table; each operation that a driver
// lacks is one; and each driver runs the others, not counting the combinations with operations that
// it lacks.
func TestEveryOperationHasACase(t *testing.T) {
	t.Parallel()
	groups := readScripts(t)
	all, methods, cases := map[string]bool{}, map[string]bool{}, 0
	for _, group := range groups {
		cases += len(group)
		for _, c := range group {
			for _, s := range c.steps {
				method, _, _ := strings.Cut(s.operation(), ",")
				all[s.operation()], methods[method] = true, true
			}
		}
	}
	table := reflect.TypeFor[backend.Table]()
	for i := range table.NumMethod() {
		if !methods[table.Method(i).Name] {
			t.Errorf("no case calls %s", table.Method(i).Name)
		}
	}
	for _, d := range drivers {
		ran, run := map[string]bool{}, 0
		for _, group := range groups {
			for _, c := range group {
				if d.has(c) {
					run++
					for _, s := range c.steps {
						ran[s.operation()] = true
					}
				}
			}
		}
		for op := range all {
			if ran[op] == (d.lacks[op] != "") {
				t.Errorf("%s: %q: a case runs it: %v", d.name, op, ran[op])
			}
		}
		for op := range d.lacks {
			if !all[op] {
				t.Errorf("%s lacks %q, which no case calls", d.name, op)
			}
		}
		t.Logf("%s: %d of %d cases", d.name, run, cases)
	}
}
