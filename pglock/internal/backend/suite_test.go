package backend_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	empty func(t *testing.T) func() tables
	lacks map[string]string // operations that it does not have, and why
	mute  *regexp.Regexp    // parts of answers that it does not tell
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
	{name: "fake", empty: fake(func(s *memory.Store) backend.Table { return s }), lacks: noDatabase},
	{name: "fake, by the fast paths", empty: fake(func(s *memory.Store) backend.Table { return fastFirst{s} }), lacks: noDatabase},
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
	}{leasetable.New(name, l), l}
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
			store := s.Connect(t.Context())
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
				for statement := range strings.SplitSeq(schema.Render(string(text), name), ";\n") {
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
							t.Run(c.title, func(t *testing.T) { runScript(t, d, c, empty) })
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

// round is how long a case may take until its answers may differ because the head of a queue is
// skipped after 1.5 s.
const round = time.Second

// runScript runs a case, and again if it has failed on a machine that stood still.
func runScript(t *testing.T, d driver, c script, empty func() tables) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	var failure string
	for attempt, took := 0, round; attempt < 10 && took >= round; attempt++ {
		w := newWorld(empty())
		began := time.Now()
		failure = ""
		for _, s := range c.steps {
			if got := w.say(ctx, s); !d.expects(s, got) {
				failure += fmt.Sprintf("%s\n\tgot %q\n", s.line, got)
			}
		}
		w.close()
		if took = time.Since(began); failure == "" {
			return
		}
	}
	t.Error(failure)
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
