package once_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// workerVariable makes the test binary a worker. Its value is a job.
const workerVariable = "PGLOCK_TEST_ONCE_WORKER"

// job is one call of a worker, which kills itself (SIGKILL) at a step.
type job struct {
	URL, Role, Password, Schema string
	Form                        form
	Key                         string
	Step                        string // empty: it is not killed
}

// form is the way in which the effect is made to happen once.
type form string

const (
	doFail  form = "Do, unknown outcomes fail"
	doAsk   form = "Do, unknown outcomes are asked about"
	inTx    form = "Tx"
	control form = "control: without once"
)

// reply is the output of a worker that was not killed.
type reply struct {
	Answer  int64
	Unknown bool   // ErrOutcomeUnknown
	Error   string // any other error
}

// leaseTTL is how long the lock of a killed worker stays held.
const leaseTTL = time.Second

// work is the main function of a worker.
func work() int {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &j); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := json.NewEncoder(os.Stdout).Encode(j.reply(ctx)); err != nil {
		return 1
	}
	return 0
}

func (j job) reply(ctx context.Context) reply {
	config, err := pgxpool.ParseConfig(j.URL)
	if err != nil {
		return reply{Error: err.Error()}
	}
	config.ConnConfig.User, config.ConnConfig.Password, config.MaxConns = j.Role, j.Password, 2
	config.ConnConfig.Tracer = &killer{step: j.Step}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return reply{Error: err.Error()}
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, pool, pglock.WithSchema(j.Schema), pglock.WithTTL(leaseTTL))
	if err != nil {
		return reply{Error: err.Error()}
	}
	defer func() { _ = client.Close(ctx) }()
	r := j.call(ctx, client, pool)
	if j.Step == "after the call" {
		kill()
	}
	return r
}

// call makes the call of the job, in any process.
func (j job) call(ctx context.Context, client *pglock.Client, pool *pgxpool.Pool) (r reply) {
	effect := func(ctx context.Context, db fencing.DB) (id int64, err error) {
		err = db.QueryRow(ctx, schema.Render("INSERT INTO pglock.effects (key) VALUES ($1) RETURNING id", j.Schema), j.Key).Scan(&id)
		return id, err
	}
	outside := func(ctx context.Context, _ *pglock.Lease) (int64, error) { return effect(ctx, pool) }
	var err error
	switch j.Form {
	case doFail:
		r.Answer, err = once.Do(ctx, client, j.Key, nil, outside)
	case doAsk:
		r.Answer, err = once.Do(ctx, client, j.Key, nil, outside, once.WithLookup(
			func(ctx context.Context, _ *pglock.Lease, s once.Started) (id int64, err error) {
				err = pool.QueryRow(ctx, schema.Render("SELECT id FROM pglock.effects WHERE key = $1", j.Schema), s.Key).Scan(&id)
				if errors.Is(err, pgx.ErrNoRows) {
					return 0, once.NotDone(err)
				}
				return id, err
			}))
	case inTx:
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			r.Answer, err = once.Tx(ctx, tx, j.Key, nil, func(ctx context.Context) (int64, error) { return effect(ctx, tx) }, once.WithSchema(j.Schema))
			return err
		})
	case control:
		r.Answer, err = effect(ctx, pool)
	}
	switch {
	case errors.Is(err, once.ErrOutcomeUnknown):
		r = reply{Unknown: true}
	case err != nil:
		r = reply{Error: err.Error()}
	}
	return r
}

// statements are the statements at which a worker can be killed, each with its first words.
var statements = map[string]string{
	"read": "SELECT false", "claim": "SELECT claimed", "effect": "INSERT INTO", "record": "WITH durable",
	"begin": "begin", "savepoint": "SAVEPOINT", "store": "UPDATE", "release": "RELEASE", "commit": "commit",
}

// steps returns the steps of a form: before each statement, while it is on its way, after its reply.
func (f form) steps() (all []string) {
	names := []string{"read", "claim", "effect", "record"}
	switch f {
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

// killer kills its process at a step.
type killer struct{ step string }

type statementKey struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (k *killer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	name := ""
	for n, text := range statements {
		if strings.HasPrefix(q.SQL, text) {
			name = n
		}
	}
	switch k.step {
	case "before " + name:
		kill()
	case "during " + name:
		time.AfterFunc(rand.N(time.Millisecond), kill)
	}
	return context.WithValue(ctx, statementKey{}, name)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (k *killer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	name, _ := ctx.Value(statementKey{}).(string)
	switch {
	case k.step == "after "+name:
		kill()
	case k.step == "during the release" && name == "record":
		time.AfterFunc(rand.N(2*time.Millisecond), kill)
	}
}

func kill() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal arrives
}
