package pgtest_test

import (
	"context"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// trusting starts a private server that requires no password, and returns its URL without one.
func trusting(t *testing.T) *url.URL {
	t.Helper()
	server := pgtest.Server(t, testserver.Options{})
	pool := pgtest.PoolOn(t, server.URL())
	var file string
	if err := pool.QueryRow(t.Context(), "SHOW hba_file").Scan(&file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("host all all 127.0.0.1/32 trust\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(u.User.Username())
	return u
}

// TestPoolerInFrontOfATrustingServer: the URL of such a server has no password, and may name the
// server's address as a parameter.
func TestPoolerInFrontOfATrustingServer(t *testing.T) {
	t.Parallel()
	plain := trusting(t)
	parameters := *plain
	parameters.Host = ""
	parameters.RawQuery += "&host=" + plain.Hostname() + "&port=" + plain.Port()
	for name, u := range map[string]*url.URL{"host and port": plain, "parameters": &parameters} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(t.Context(), pgtest.Pooler(t, u.String(), "transaction"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(context.Background()) })
			if address := conn.PgConn().Conn().RemoteAddr().String(); address == plain.Host {
				t.Error("the URL leads past the pooler")
			}
			var one int
			if err := conn.QueryRow(t.Context(), "SELECT 1", pgx.QueryExecModeExec).Scan(&one); err != nil || one != 1 {
				t.Errorf("got %d, %v", one, err)
			}
		})
	}
}
