package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// connect opens the connection, and describes it. It leaves conn nil on failure.
func (c *checker) connect(ctx context.Context) Result {
	config := c.Conn.Copy()
	// Neither a prepared statement nor the session's settings matter, so it works behind any pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, c.Limits.Connect)
	c.Conn = config
	bounded, cancel := context.WithTimeout(ctx, config.ConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(bounded, config)
	if err != nil {
		found := err
		if c.ExplainConnect != nil {
			found = c.ExplainConnect(err)
		}
		return Result{"connection", Fail, found.Error(), connectRemedy(err)}
	}
	if schema.IsCockroachDB(conn.PgConn()) {
		_ = pgtx.CleanUp(ctx, conn.Close)
		found, remedy, _ := strings.Cut(schema.WhyNotCockroachDB, ": ")
		return Result{"server", Fail, found, remedy}
	}
	c.conn = conn
	address := conn.PgConn().Conn().RemoteAddr()
	found := fmt.Sprintf("role %q, database %q, %s", config.User, config.Database, address)
	if encrypted, ok := conn.PgConn().Conn().(*tls.Conn); ok {
		return Result{"connection", OK, found + ", " + tls.VersionName(encrypted.ConnectionState().Version), ""}
	}
	if isLocal(address) {
		return Result{"connection", OK, found + ", without TLS on this host", ""}
	}
	return Result{"connection", Warn, found + ", without TLS over a network", "set sslmode=verify-full, or require at least"}
}

// remedies are those for the SQLSTATEs with which a server refuses a connection.
var remedies = map[string]string{
	pgtx.InvalidPassword:       "check the password: PGPASSWORD, ~/.pgpass or the connection string",
	pgtx.InvalidAuthorization:  "check the role, and pg_hba.conf on the server",
	pgtx.InvalidCatalogName:    "check the name of the database",
	pgtx.InsufficientPrivilege: "let the owner of the database run GRANT CONNECT ON DATABASE",
	"53300":                    "close connections, or raise max_connections, or the limit of the role or the database",
	pgtx.CannotConnectNow:      "wait until the server has started",
}

func connectRemedy(err error) string {
	var pg *pgconn.PgError
	var certificate *tls.CertificateVerificationError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		return cmp.Or(remedies[pg.Code], "see the server's log")
	case errors.As(err, &certificate):
		return "set sslrootcert to the certificate of the server's authority, and check the host name"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout():
		return "check the address and the firewall, and whether the server hangs"
	}
	return "check the host and the port, sslmode, and that the server runs"
}

func isLocal(address net.Addr) bool {
	if strings.HasPrefix(address.Network(), "unix") {
		return true
	}
	peer, err := netip.ParseAddrPort(address.String())
	return err == nil && peer.Addr().Unmap().IsLoopback()
}
