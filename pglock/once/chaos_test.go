package once_test

import (
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// form is the way in which the effect is made to happen once.
type form string

const (
	doFail  form = "Do, unknown outcomes fail"
	doAsk   form = "Do, unknown outcomes are asked about"
	inTx    form = "Tx"
	control form = "control: without once"
)

// reply is the outcome of a call.
type reply struct {
	Answer  int64
	Unknown bool  // ErrOutcomeUnknown
	Err     error // any other error
}

// attempt makes the effect of a key happen.
func (f fixture) attempt(ctx context.Context, how form, key string, client *pglock.Client, pool *pgxpool.Pool) (r reply) {
	outside := func(ctx context.Context, _ *pglock.Lease) (int64, error) { return f.effect(ctx, pool, key) }
	var err error
	switch how {
	case doFail:
		r.Answer, err = once.Do(ctx, client, key, nil, outside)
	case doAsk:
		r.Answer, err = once.Do(ctx, client, key, nil, outside, once.WithLookup(
			func(ctx context.Context, _ *pglock.Lease, s once.Started) (id int64, err error) {
				err = pool.QueryRow(ctx, schema.Render("SELECT id FROM pglock.effects WHERE key = $1", f.schema), s.Key).Scan(&id)
				if errors.Is(err, pgx.ErrNoRows) {
					return 0, once.NotDone(err)
				}
				return id, err
			}))
	case inTx:
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			r.Answer, err = once.Tx(ctx, tx, key, nil, func(ctx context.Context) (int64, error) { return f.effect(ctx, tx, key) }, f.in)
			return err
		})
	case control:
		r.Answer, err = f.effect(ctx, pool, key)
	}
	switch {
	case errors.Is(err, once.ErrOutcomeUnknown):
		r = reply{Unknown: true}
	case err != nil:
		r = reply{Err: err}
	}
	return r
}

// statements are the statements at which a client can be cut off, each with its first words.
var statements = map[string]string{
	"read": "SELECT false", "claim": "SELECT claimed", "effect": "INSERT INTO", "record": "WITH durable",
	"begin": "begin", "savepoint": "SAVEPOINT", "store": "UPDATE", "release": "RELEASE", "commit": "commit",
}

// steps returns the steps of a form: before each statement, while it is on its way, after its reply.
func (how form) steps() (all []string) {
	names := []string{"read", "claim", "effect", "record"}
	switch how {
	case inTx:
		names = []string{"begin", "savepoint", "claim", "effect", "store", "release", "commit"}
	case control:
		return []string{"after effect", "after the call"}
	}
	for _, name := range names {
		all = append(all, "before "+name, "during "+name, "after "+name)
	}
	return append(all, "during the release", "after the call", "")
}

// cutter is a tracer that cuts its client off at a step.
type cutter struct {
	step string
	cut  func()
}

type statementKey struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (c *cutter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	name := ""
	for n, text := range statements {
		if strings.HasPrefix(q.SQL, text) {
			name = n
		}
	}
	switch c.step {
	case "before " + name:
		c.cut()
	case "during " + name:
		time.AfterFunc(rand.N(time.Millisecond), c.cut)
	}
	return context.WithValue(ctx, statementKey{}, name)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (c *cutter) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	name, _ := ctx.Value(statementKey{}).(string)
	switch {
	case c.step == "after "+name:
		c.cut()
	case c.step == "during the release" && name == "record":
		time.AfterFunc(rand.N(2*time.Millisecond), c.cut)
	}
}

// cutOff makes the effect happen by a client that loses the server at a step, for good. For the server,
// and for everybody else, it has died. If it has, there is no reply.
func (f fixture) cutOff(how form, key, step string) (replies []reply) {
	config := f.pool.Config()
	proxy := faultproxy.New(f.t, net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))))
	dead := make(chan struct{})
	c := &cutter{step, sync.OnceFunc(func() { close(dead); proxy.Refuse(true); proxy.Sever() })}
	config.ConnConfig.Fallbacks, config.ConnConfig.Tracer = nil, c
	name := "cut off " + crand.Text()
	config.ConnConfig.RuntimeParams["application_name"] = name
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", proxy.Addr())
	}
	pool, err := pgxpool.NewWithConfig(f.t.Context(), config)
	if err != nil {
		f.t.Error(err)
		return nil
	}
	client, err := pglock.Open(f.t.Context(), pool, pglock.WithSchema(f.schema), pglock.WithTTL(10*time.Second), pglock.WithLogger(nil))
	if err != nil {
		f.t.Error(err)
		return nil
	}
	ended, closed := make(chan reply, 1), make(chan struct{})
	f.t.Cleanup(func() { <-closed })
	go func() {
		defer close(closed)
		ended <- f.attempt(f.t.Context(), how, key, client, pool)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = client.Close(ctx) // can't release what it holds
		pool.Close()
	}()
	select { // if both are ready, it has died after the last statement
	case r := <-ended:
		replies = []reply{r}
	case <-dead:
	}
	if step == "after the call" {
		c.cut()
	}
	select {
	case <-dead: // what it has sent arrives before its lease expires
		pgtest.Eventually(f.t, "its sessions have ended", func() bool {
			var left int
			err := f.pool.QueryRow(f.t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE left(application_name, length($1)) = $1", name).Scan(&left)
			return err == nil && left == 0
		})
		return nil
	default:
		return replies
	}
}

// TestChaosCutOffAtEachStep: a client is cut off at each step of a call, and others repeat the call. The
// effect never happens twice, and all answers are the same. With Tx, and with Do and WithLookup, each key
// gets its answer. In the control, without once, each repeated call repeats the effect.
func TestChaosCutOffAtEachStep(t *testing.T) {
	t.Parallel()
	for _, how := range []form{doFail, doAsk, inTx, control} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			steps := how.steps()
			rounds := len(steps)
			if os.Getenv("PGLOCK_CHAOS") != "" {
				rounds = 200
			}
			f := newFixture(t)
			clients := []*pglock.Client{f.client(), f.client()}
			var died, unknown atomic.Int64
			var all sync.WaitGroup
			slots := make(chan struct{}, 2)
			for round := range rounds {
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					f.round(how, strconv.Itoa(round), steps[round%len(steps)], clients, &died, &unknown)
				})
			}
			all.Wait()
			t.Logf("%s: %d rounds, %d cut off, %d unknown", how, rounds, died.Load(), unknown.Load())
			if died.Load() == 0 || (unknown.Load() > 0) != (how == doFail) {
				t.Errorf("%d were cut off, and %d outcomes were unknown", died.Load(), unknown.Load())
			}
		})
	}
}

// round cuts a client off at a step, repeats its call with two clients at once, and once more, and checks
// the effects and the answers of the key.
func (f fixture) round(how form, key, step string, clients []*pglock.Client, died, unknown *atomic.Int64) {
	f.t.Helper()
	replies := f.cutOff(how, key, step)
	dead := replies == nil
	if dead != (step != "") && !strings.HasPrefix(step, "during") { // the call may be over before that signal
		f.t.Errorf("%s: cut off %q: %v", how, step, dead)
	}
	if dead { // its lease expires
		died.Add(1)
		f.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE name = $1 AND holder IS NOT NULL", once.LockName(key))
	}
	found := make(chan reply, len(clients))
	for _, c := range clients {
		go func() { found <- f.attempt(f.t.Context(), how, key, c, f.pool) }()
	}
	for range clients {
		replies = append(replies, <-found)
	}
	replies = append(replies, f.attempt(f.t.Context(), how, key, clients[0], f.pool))
	answers := map[int64]bool{}
	for _, r := range replies {
		switch {
		case r.Err != nil:
			f.t.Errorf("%s, %q: %v", how, step, r.Err)
		case r.Unknown:
			unknown.Add(1)
		default:
			answers[r.Answer] = true
		}
	}
	n := f.effects(key)
	twice := n > 1 || len(answers) > 1
	if twice != (how == control) || n == 0 && how != doFail {
		f.t.Errorf("%s, cut off %q: %d effects, %+v", how, step, n, replies)
	}
}
