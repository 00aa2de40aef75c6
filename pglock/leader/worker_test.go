package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// workerVariable makes the test binary a candidate. Its value is a job.
const workerVariable = "PGLOCK_TEST_LEADER_WORKER"

// job is the configuration of a candidate in a process of its own. While it leads, it writes its token
// into a table, again and again.
type job struct {
	URL, Role, Password, Schema string
	Name                        string
	Guarded                     bool // the writes
	TTL                         time.Duration
}

// work is the main function of a worker. It ends with its standard input, so that it does not outlive
// the test.
func work() int {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &j); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	if err := j.run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (j job) run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(j.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.User, config.ConnConfig.Password, config.MaxConns = j.Role, j.Password, 2
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, pool, pglock.WithSchema(j.Schema), pglock.WithTTL(j.TTL), pglock.WithLogger(nil))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(context.Background()) }()
	return leader.Run(ctx, client, "e", func(ctx context.Context, t *leader.Term) error {
		for ctx.Err() == nil {
			// The look at ctx is over: a pause in this moment makes the write a late one.
			time.Sleep(3 * time.Millisecond) //nolint:forbidigo // the work of a leader between a look and a write
			if err := j.write(context.WithoutCancel(ctx), pool, t); err != nil && !errors.Is(err, pglock.ErrStale) {
				return err
			}
		}
		return ctx.Err()
	}, leader.WithLogger(nil), leader.WithPayload(fmt.Sprint(os.Getpid())), leader.WithLease(pglock.WithHolder(j.Name)))
}

// write inserts the term's token, under its guard or without.
func (j job) write(ctx context.Context, pool *pgxpool.Pool, t *leader.Term) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if j.Guarded {
			if err := t.Lease().Guard(ctx, tx); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, schema.Render("INSERT INTO pglock.writes (token) VALUES ($1)", j.Schema), int64(t.Lease().Token()))
		return err
	})
}
