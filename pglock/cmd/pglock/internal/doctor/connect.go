package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// connect opens the connection. It leaves conn nil on failure.
func (e *exam) connect(ctx context.Context) []Result {
	config := e.Conn.Copy()
	// Neither a prepared statement nor the session's settings matter, so it works behind any pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	if config.ConnectTimeout <= 0 {
		config.ConnectTimeout = e.Limits.Connect
	}
	e.Conn = config
	bounded, cancel := context.WithTimeout(ctx, config.ConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(bounded, config)
	if err != nil {
		found := err
		if e.ExplainConnect != nil {
			found = e.ExplainConnect(err)
		}
		return []Result{{"connection", Fail, found.Error(), connectRemedy(err)}}
	}
	e.conn = conn
	return []Result{e.describeConnection()}
}

func connectRemedy(err error) string {
	var pg *pgconn.PgError
	var certificate *tls.CertificateVerificationError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		switch pg.Code {
		case "28P01":
			return "check the password: PGPASSWORD, ~/.pgpass or the connection string"
		case "28000":
			return "check the role, and pg_hba.conf on the server"
		case "3D000":
			return "check the name of the database"
		case "42501":
			return "let the owner of the database run GRANT CONNECT ON DATABASE"
		case "53300":
			return "close connections, or raise max_connections, or the limit of the role or the database"
		case "57P03":
			return "wait until the server has started"
		}
		return "see the server's log"
	case errors.As(err, &certificate):
		return "set sslrootcert to the certificate of the server's authority, and check the host name"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout():
		return "check the address and the firewall, and whether the server hangs"
	}
	return "check the host and the port, sslmode, and that the server runs"
}

// describeConnection tells who is connected to what, and how.
func (e *exam) describeConnection() Result {
	address := e.conn.PgConn().Conn().RemoteAddr()
	found := fmt.Sprintf("role %q, database %q, %s", e.Conn.User, e.Conn.Database, address)
	if encrypted, ok := e.conn.PgConn().Conn().(*tls.Conn); ok {
		return Result{"connection", OK, found + ", " + tls.VersionName(encrypted.ConnectionState().Version), ""}
	}
	if isLocal(address) {
		return Result{"connection", OK, found + ", without TLS on this host", ""}
	}
	return Result{"connection", Warn, found + ", without TLS over a network", "set sslmode=verify-full, or require at least"}
}

func isLocal(address net.Addr) bool {
	if strings.HasPrefix(address.Network(), "unix") {
		return true
	}
	host, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
