package leasetable

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// pingEvery is how long the listening connection may be silent before it is tried: a
	// connection that died half-open would stay silent for ever.
	pingEvery = 10 * time.Second

	firstReconnect = 50 * time.Millisecond
	maxReconnect   = 5 * time.Second
	deafPause      = 30 * time.Second // before a way that passes nothing on is tried again
)

// notifySQL is what the listening connection is tried with.
const notifySQL = "SELECT pg_notify($1::text, '')"

// errDeaf: LISTEN was taken, and a notification did not come.
var errDeaf = errors.New("LISTEN was taken but nothing is notified, as behind a pooler in transaction mode: see WithListener and WithPollOnly")

// newChannel returns a channel name of the client's own: 33 letters and digits, nobody
// else's, whatever the schema.
func newChannel() string { return "pglock_" + strings.ToLower(rand.Text()) }

// ears are the client's one listening connection, outside of the application's pool. It is
// opened when somebody waits for the first time, and kept until the client is closed.
type ears struct {
	client  *Client
	once    sync.Once
	up      atomic.Bool
	ctx     context.Context //nolint:containedctx // it ends what runs
	quit    context.CancelFunc
	running sync.WaitGroup
}

func newEars(c *Client) *ears {
	ctx, quit := context.WithCancel(c.life)
	return &ears{client: c, ctx: ctx, quit: quit}
}

// begin opens the connection, if it is not open. It does not wait for it.
func (e *ears) begin() {
	if !e.client.cfg.pollOnly {
		e.once.Do(func() { e.running.Go(e.run) })
	}
}

// listening reports whether notifications come, as far as is known.
func (e *ears) listening() bool { return e.up.Load() }

// stop closes the connection. It is called once, when nobody begins any more.
func (e *ears) stop() {
	e.quit()
	e.running.Wait()
}

// run keeps a connection that listens. Whenever there is a new one, everybody who waits
// asks: nobody knows what was missed.
func (e *ears) run() {
	pause := firstReconnect
	for e.ctx.Err() == nil {
		began := time.Now()
		err := e.listen()
		e.up.Store(false)
		if e.ctx.Err() != nil {
			return
		}
		e.client.waiting.nudgeAll() // so that they poll
		e.client.cfg.logger.Warn("pglock: the listening connection failed; waiters poll until there is a new one", "error", err)
		if time.Since(began) > maxReconnect {
			pause = firstReconnect
		}
		if errors.Is(err, errDeaf) {
			pause = deafPause
		}
		select {
		case <-time.After(pause/2 + mathrand.N(pause)):
		case <-e.ctx.Done():
		}
		pause = min(2*pause, maxReconnect)
	}
}

// listen opens a connection and passes on what is notified until it fails.
func (e *ears) listen() error {
	conn, err := e.connect()
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if err := e.try(conn); err != nil {
		return err
	}
	e.up.Store(true)
	e.client.waiting.nudgeAll()
	for {
		ctx, cancel := context.WithTimeout(e.ctx, pingEvery-mathrand.N(pingEvery/5))
		n, err := conn.WaitForNotification(ctx)
		cancel()
		switch {
		case err == nil:
			e.heard(n.Payload)
		case e.ctx.Err() == nil && silent(err):
			if err := e.ping(conn); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (e *ears) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(e.ctx, statementBound)
	defer cancel()
	config := e.client.cfg.listener
	if config == nil {
		pool := e.client.conns.pool.Config()
		config = pool.ConnConfig
		if pool.BeforeConnect != nil { // it may know the password of the moment
			if err := pool.BeforeConnect(ctx, config); err != nil {
				return nil, err
			}
		}
	}
	config = config.Copy()
	config.OnNotification = nil // which would take what this connection waits for
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{e.client.channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// try has this client notified by another of its connections, and waits for that.
func (e *ears) try(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(e.ctx, statementBound)
	defer cancel()
	if _, err := e.client.conns.send(ctx, statement{sql: notifySQL, args: []any{e.client.channel}}); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		switch {
		case err != nil && silent(err):
			return errDeaf
		case err != nil:
			return err
		case n.Payload == "": // no name is empty
			return nil
		}
		e.heard(n.Payload)
	}
}

// silent reports whether nothing came in time, and the connection is as good as before.
func silent(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

func (e *ears) ping(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(e.ctx, statementBound)
	defer cancel()
	return conn.Ping(ctx)
}

// heard has the first in line for that name ask. If nobody waits here any more the next
// process is woken: it was meant for somebody who has left.
func (e *ears) heard(name string) {
	c := e.client
	if c.waiting.nudge(name) || c.enterToRelease() != nil {
		return
	}
	defer c.leave()
	c.background(statementBound, func(ctx context.Context) { _ = c.passOn(ctx, name, 0) })
}
