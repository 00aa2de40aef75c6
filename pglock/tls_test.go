package pglock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// tlsPassword is the password of the client's role. No text may show it.
const tlsPassword = "hunter2-fish"

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + t.Name()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return authority{cert, key}
}

// file writes the authority's certificate into a file.
func (a authority) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600))
	return path
}

// server returns a certificate for 127.0.0.1, and its key.
func (a authority) server(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.cert, &private.PublicKey, a.key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// tlsServer is a private server that accepts the role "client" with TLS and without.
type tlsServer struct {
	t     *testing.T
	admin *pgxpool.Pool
	log   string   // the server's log file
	url   *url.URL // of the role, without a password and parameters
	ca    authority
}

func newTLSServer(t *testing.T) *tlsServer {
	t.Helper()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"password_encryption": "scram-sha-256"}})
	s := &tlsServer{t: t, admin: pgtest.PoolOn(t, server.URL()), log: server.LogFile(), ca: newAuthority(t)}
	u, err := url.Parse(server.URL())
	must(t, err)
	u.User, u.RawQuery = nil, ""
	s.url = u
	cert, key := s.ca.server(t)
	// The server itself writes the files, so that they are its user's.
	s.write("server.crt", cert)
	s.write("server.key", key)
	s.exec("ALTER SYSTEM SET ssl = on")
	s.exec("CREATE ROLE client LOGIN PASSWORD '" + tlsPassword + "'")
	s.auth("scram-sha-256")
	must(t, migrations.Up(t.Context(), s.admin, migrations.WithUser("client")))
	return s
}

func (s *tlsServer) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.admin.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%.60s: %v", sql, err)
	}
}

func (s *tlsServer) write(file, text string) {
	s.t.Helper()
	s.exec("COPY (SELECT unnest(string_to_array('" + strings.TrimSpace(text) + "', E'\\n'))) TO PROGRAM 'umask 077; cat > " + file + "'")
}

// auth sets the method by which clients log in.
func (s *tlsServer) auth(method string) {
	s.t.Helper()
	s.write("pg_hba.conf", "host all postgres 127.0.0.1/32 md5\nhost all client 127.0.0.1/32 "+method)
	s.exec("SELECT pg_reload_conf()")
	pgtest.Eventually(s.t, "the server has read pg_hba.conf", func() bool {
		var ok bool
		err := s.admin.QueryRow(s.t.Context(), "SELECT count(*) = 1 AND current_setting('ssl') = 'on' FROM pg_hba_file_rules WHERE 'client' = ANY (user_name) AND auth_method = $1", method).Scan(&ok)
		// A new process reads the files, so that it is the server that has read them.
		conn, connErr := pgx.Connect(s.t.Context(), s.at("127.0.0.1", tlsPassword, "sslmode", "verify-full", "sslrootcert", s.ca.file(s.t)))
		if connErr == nil {
			_ = conn.Close(s.t.Context())
		}
		return err == nil && ok && connErr == nil
	})
}

// at returns the client's connection string.
func (s *tlsServer) at(host, password string, params ...string) string {
	u := *s.url
	u.Host = net.JoinHostPort(host, u.Port())
	u.User = url.UserPassword("client", password)
	q := url.Values{}
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// sessions counts the client's sessions with TLS and without.
func (s *tlsServer) sessions() (encrypted, plain int) {
	s.t.Helper()
	if err := s.admin.QueryRow(s.t.Context(), `SELECT count(*) FILTER (WHERE s.ssl), count(*) FILTER (WHERE NOT s.ssl)
		FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid) WHERE a.usename = 'client'`).Scan(&encrypted, &plain); err != nil {
		s.t.Fatal(err)
	}
	return encrypted, plain
}

// plainLogins counts the client's logins without TLS in the server's log.
func (s *tlsServer) plainLogins() (n int) {
	s.t.Helper()
	log, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "connection authorized: user=client") && !strings.Contains(line, "SSL enabled") {
			n++
		}
	}
	return n
}

// use opens a client, and makes it open all kinds of connections: the pool's, those of renewals and
// batches, and the listener's. check is called while they are open.
func (s *tlsServer) use(connString string, check func(), opts ...pglock.Option) error {
	s.t.Helper()
	pool := pgtest.PoolOn(s.t, connString)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	client, err := pglock.Open(ctx, pool, opts...)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	return client.Do(ctx, "held", func(ctx context.Context, l *pglock.Lease) error {
		waiting := make(chan error, 1)
		go func() {
			waiting <- client.Do(s.t.Context(), "held", func(context.Context, *pglock.Lease) error { return nil }, pglock.WithWait(time.Minute))
		}()
		pgtest.Eventually(s.t, "the listener listens", func() bool {
			var n int
			err := s.admin.QueryRow(s.t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'client' AND query LIKE 'LISTEN%'").Scan(&n)
			return err == nil && n > 0
		})
		if err := client.DoTx(ctx, "tx", func(context.Context, pgx.Tx) error { return nil }); err != nil {
			return err
		}
		if err := l.Extend(ctx, 30*time.Second); err != nil {
			return err
		}
		check()
		if err := l.Release(ctx); err != nil {
			return err
		}
		return <-waiting
	})
}

// TestTLSAndSCRAM: with sslmode=verify-full, all connections of a client use TLS, and the password is
// proved with SCRAM-SHA-256. A client that can't verify the server, or whose password is wrong, fails
// with an error that says so, and sends nothing without TLS. The server would accept that: the
// control is a client with sslmode=disable.
func TestTLSAndSCRAM(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t)
	good, bad := s.ca.file(t), newAuthority(t).file(t)
	var verifier string
	if err := s.admin.QueryRow(t.Context(), "SELECT rolpassword FROM pg_authid WHERE rolname = 'client'").Scan(&verifier); err != nil || !strings.HasPrefix(verifier, "SCRAM-SHA-256$") {
		t.Fatalf("the password is stored as %.20s, %v", verifier, err)
	}
	encrypted, plain := 0, 0
	count := func() { encrypted, plain = s.sessions() }

	scram := []string{"sslmode", "verify-full", "sslrootcert", good, "require_auth", "scram-sha-256"}
	if err := s.use(s.at("127.0.0.1", tlsPassword, scram...), count); err != nil || encrypted < 3 || plain > 0 {
		t.Errorf("%d connections with TLS, %d without, %v", encrypted, plain, err)
	}
	t.Logf("a client has %d connections with TLS, %d without", encrypted, plain)
	if err := s.use(s.at("127.0.0.1", tlsPassword, "sslmode", "disable"), count); err != nil || plain < 3 {
		t.Errorf("the control: %d connections with TLS, %d without, %v", encrypted, plain, err)
	}

	s.exec("ALTER SYSTEM SET log_connections = on")
	s.exec("SELECT pg_reload_conf()")
	pgtest.Eventually(t, "the control: the log names a login without TLS", func() bool {
		check(t, s.use(s.at("127.0.0.1", tlsPassword, "sslmode", "disable"), func() {}))
		return s.plainLogins() > 0
	})
	// The server's log may be behind: it has the control's logins before this line.
	s.exec("DO $$ BEGIN RAISE LOG 'the control has ended'; END $$")
	pgtest.Eventually(t, "the log shows the end of the control", func() bool {
		log, err := os.ReadFile(s.log)
		return err == nil && strings.Contains(string(log), "the control has ended")
	})
	before := s.plainLogins()
	for _, refused := range []struct{ name, connString, says string }{
		{"another authority", s.at("127.0.0.1", tlsPassword, "sslmode", "verify-full", "sslrootcert", bad), "certificate"},
		{"another authority, verify-ca", s.at("127.0.0.1", tlsPassword, "sslmode", "verify-ca", "sslrootcert", bad), "certificate"},
		{"another host name", s.at("localhost", tlsPassword, "sslmode", "verify-full", "sslrootcert", good), "localhost"},
		{"wrong password", s.at("127.0.0.1", tlsPassword+"x", scram...), "password authentication failed"},
	} {
		var log logBuffer
		events := &recorder{}
		err := s.use(refused.connString, count, pglock.WithLogger(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))), pglock.WithObserver(events.hooks()))
		if err == nil || !strings.Contains(err.Error(), refused.says) {
			t.Errorf("%s: %v", refused.name, err)
		}
		if wantLogin := refused.name == "wrong password"; errors.Is(err, pglock.ErrLogin) != wantLogin {
			t.Errorf("%s: %v", refused.name, err)
		}
		if shown := fmt.Sprintf("%v %+v %#v %s %+v", err, err, err, log.String(), events.all); strings.Contains(shown, "hunter2") {
			t.Errorf("%s: shows the password: %s", refused.name, shown)
		}
		if n := s.plainLogins() - before; n > 0 {
			t.Errorf("%s: %d logins without TLS", refused.name, n)
		}
	}

	// A server that asks for the password itself gets none.
	s.auth("password")
	if err := s.use(s.at("127.0.0.1", tlsPassword, scram...), count); err == nil {
		t.Error("the client has sent its password in clear text")
	}
	check(t, s.use(s.at("127.0.0.1", tlsPassword, "sslmode", "verify-full", "sslrootcert", good), count))
	// A server without TLS is refused.
	s.exec("ALTER SYSTEM SET ssl = off")
	s.exec("SELECT pg_reload_conf()")
	for _, mode := range []string{"require", "verify-full"} {
		pgtest.Eventually(t, "the client refuses a server without TLS", func() bool {
			err := s.use(s.at("127.0.0.1", tlsPassword, "sslmode", mode, "sslrootcert", good), func() {})
			return err != nil && strings.Contains(strings.ToLower(err.Error()), "tls")
		})
	}
}
