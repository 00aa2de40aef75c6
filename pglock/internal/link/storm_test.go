package link_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// busyServer answers one connection after the other, and needs that long for each, also for one
// that its client has given up: it forks a process before it reads. The kernel accepts at once.
type busyServer struct {
	each    time.Duration
	backlog chan net.Conn
}

func (s *busyServer) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case conn := <-s.backlog:
			<-time.After(s.each)
			go s.session(conn)
		}
	}
}

// session answers the startup message, and then nothing.
func (s *busyServer) session(conn net.Conn) {
	defer conn.Close()
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for err := b.Flush(); err == nil; {
		_, err = b.Receive()
	}
}

func (s *busyServer) connect(ctx context.Context, least time.Duration) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("host=192.0.2.1 sslmode=disable user=u dbname=d")
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = 0
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		s.backlog <- server
		return client, nil
	}
	return link.Connect(ctx, config, least)
}

// TestAFleetConnectsToABusyServer: clients whose connections a server has ended dial together. If
// each gives up a dial before its turn, and dials again, the server works only for dials that have
// been given up, for as long as they go on. So they must dial less and less often.
func TestAFleetConnectsToABusyServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const clients, callers = 200, 4
		s := &busyServer{each: 40 * time.Millisecond, backlog: make(chan net.Conn, 1_000_000)}
		ctx, cancel := context.WithCancel(t.Context())
		var serving, calling sync.WaitGroup
		serving.Go(func() { s.serve(ctx) })
		began := time.Now()
		for range clients {
			p := link.NewTestPool(callers+2, time.Hour, time.Hour, time.Hour, time.Minute, s.connect)
			var waiting sync.WaitGroup
			for range callers {
				waiting.Go(func() {
					for ctx.Err() == nil {
						call, end := context.WithTimeout(ctx, timing.StatementBound)
						c, err := p.Acquire(call, false)
						end()
						if err == nil {
							p.Release(c)
							return
						}
					}
				})
			}
			calling.Go(func() {
				waiting.Wait()
				p.Close(context.Background())
			})
		}
		stop := time.AfterFunc(3*time.Minute, cancel)
		calling.Wait()
		if !stop.Stop() {
			t.Errorf("after three minutes %d connections wait for the server", len(s.backlog))
		}
		t.Logf("all clients connected within %v", time.Since(began))
		cancel()
		serving.Wait()
	})
}
