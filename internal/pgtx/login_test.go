package pgtx_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestLoginRejected: the shared server may require no password; a private server always does.
func TestLoginRejected(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(pgtest.Server(t, testserver.Options{}).URL())
	locktest.OK(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	locktest.OK(t, err)
	refused := listener.Addr().String()
	listener.Close()
	for name, tc := range map[string]struct {
		hosts string
		user  string
		path  string
		want  bool
	}{
		"unknown role":                    {server.Host, "nobody", server.Path, true},
		"unknown database":                {server.Host, "", "/none", true},
		"no server":                       {refused, "", server.Path, false},
		"rejected by the last host":       {refused + "," + server.Host, "nobody", server.Path, true},
		"the first host ends the attempt": {server.Host + "," + refused, "nobody", server.Path, true},
	} {
		u := *server
		u.Host, u.Path = tc.hosts, tc.path
		if tc.user != "" {
			u.User = url.UserPassword(tc.user, "wrong")
		}
		conn, err := pgx.Connect(t.Context(), u.String())
		if err == nil {
			_ = conn.Close(t.Context())
			t.Errorf("%s: connected", name)
			continue
		}
		if got := pgtx.LoginRejected(err); got != tc.want {
			t.Errorf("%s: %v, want %v: %v", name, got, tc.want, err)
		}
		if explained := pgtx.ExplainLogin(err); errors.Is(explained, errs.ErrLogin) != tc.want || !errors.Is(explained, err) {
			t.Errorf("%s: explained as %v", name, explained)
		}
	}
	conn, err := pgx.Connect(t.Context(), server.String())
	locktest.OK(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "SET ROLE none; SET SESSION AUTHORIZATION nobody_there")
	if err == nil || pgtx.LoginRejected(err) {
		t.Errorf("a statement's error is no rejected login: %v", err)
	}
}

// TestUnanswered: a host that accepts connections and does not answer, beside others.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(pgtest.URL(t))
	locktest.OK(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	locktest.OK(t, err)
	defer listener.Close()
	silent := listener.Addr().String()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	locktest.OK(t, err)
	refused := closed.Addr().String()
	closed.Close()
	const unreached = "192.0.2.1:5432"
	for _, tc := range []struct {
		hosts string
		want  bool
	}{
		{silent, true},
		{silent + "," + refused, true},
		{unreached + "," + silent, true},
		{unreached, true},
		{refused, true},
		{silent + "," + server.Host, false}, // which is no standby
		{server.Host + "," + silent, false},
		{server.Host, false},
	} {
		u := *server
		u.Host, u.RawQuery = tc.hosts, "connect_timeout=1&target_session_attrs=standby&sslmode=disable"
		config, err := pgx.ParseConfig(u.String())
		locktest.OK(t, err)
		dial := config.DialFunc
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != unreached {
				return dial(ctx, network, address)
			}
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
		}
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err == nil {
			_ = conn.Close(t.Context())
			t.Errorf("%s: connected", tc.hosts)
			continue
		}
		if got := pgtx.Unanswered(err); got != tc.want {
			t.Errorf("%s: %v, want %v: %v", tc.hosts, got, tc.want, err)
		}
	}
	if pgtx.Unanswered(nil) || pgtx.Unanswered(context.DeadlineExceeded) {
		t.Error("unanswered without a dial")
	}
}
