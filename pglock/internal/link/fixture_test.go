package link_test

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// store is a Table over a Link, as a client has it.
type store struct {
	*leasetable.Table
	*link.Link
}

// newStore returns a store for the database of pool that is closed at the end of the test.
func newStore(t *testing.T, pool *pgxpool.Pool, schema string) store {
	t.Helper()
	life, end := context.WithCancel(context.Background())
	l := link.New(life, pool.Config(), link.Config{Schema: schema, MaxConns: 4, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		end()
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
		defer cancel()
		l.Close(ctx)
	})
	return store{leasetable.New(schema, l), l}
}

// request returns a request for a name.
func request(name, id, holder string) *leasetable.Request {
	return &leasetable.Request{
		Name: name, ID: "00000000-0000-4000-8000-00000000000" + id, Holder: holder, Labels: "{}",
		TTL: time.Minute, Ticket: leasetable.NoTicket,
	}
}

func one(r *leasetable.Request) []*leasetable.Request { return []*leasetable.Request{r} }

// address returns the address of a server.
func address(config *pgx.ConnConfig) string {
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// via returns the configuration for the same server through proxy.
func via(t *testing.T, config *pgx.ConnConfig, proxy *faultproxy.Proxy) *pgx.ConnConfig {
	t.Helper()
	config = config.Copy()
	host, text, err := net.SplitHostPort(proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	config.Host, config.Port, config.Fallbacks = host, uint16(port), nil
	return config
}
