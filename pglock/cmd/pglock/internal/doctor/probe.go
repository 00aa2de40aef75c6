package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// connect opens the connection, and describes it. It leaves conn nil on failure.
func (c *checker) connect(ctx context.Context) Result {
	config := c.Conn.Copy()
	// Neither a prepared statement nor the session's settings matter, so it works behind any
	// pooler.
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

const (
	pollRemedy = "give clients pglock.WithListener with a connection string past the pooler, or pglock.WithPollOnly"

	// maxAhead is how far a machine's clock may be ahead of the database's: see schedule.ErrClock.
	maxAhead = time.Minute

	// clockSamples is how often the clocks are compared. The one with the fastest answer counts.
	clockSamples = 3
)

// checkOwner finds out whether the schema may be used: see schema.Untrusted.
func (c *checker) checkOwner(ctx context.Context) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limits.Answer)
	defer cancel()
	why, err := schema.Untrusted(ctx, c.conn.PgConn(), c.Schema)
	if c.untrusted = err != nil || why != ""; why == "" {
		return nil, err
	}
	found, remedy, _ := strings.Cut(why, ": ")
	return []Result{{"schema", Fail, found, remedy}}, nil
}

// checkObjects compares the objects. The section of the schema says whether there are any.
func (c *checker) checkObjects(ctx context.Context) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limits.Answer+c.Limits.Scan)
	defer cancel()
	found, err := schema.Objects(ctx, c.conn, c.Schema)
	if err != nil || !slices.ContainsFunc(found, func(o schema.Object) bool { return o.Name == "function pglock_schema_version()" }) {
		return nil, err
	}
	if differing, _ := schema.Differences(found, migrations.FS, c.Schema); differing != nil {
		what, remedy := schema.Differs(c.Schema, differing)
		return []Result{{"schema", Fail, what, remedy}}, nil
	}
	return nil, nil
}

// checkPooler compares process numbers, because a pooler makes up those that it reports.
func (c *checker) checkPooler(ctx context.Context) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limits.Answer)
	defer cancel()
	var pid uint32
	if err := c.conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return nil, err
	}
	if pid == c.conn.PgConn().PID() {
		return []Result{{"pooler", OK, "none: the connection leads to the server", ""}}, nil
	}
	switch err := advisory.EnsureDirect(ctx, c.conn); {
	case errors.Is(err, advisory.ErrPooled):
		return []Result{{"pooler", Warn, "a pooler in transaction mode: no LISTEN, no session locks, perhaps no prepared statements",
			pollRemedy + "; if the pooler does not know prepared statements, set default_query_exec_mode=exec"}}, nil
	case err != nil:
		return nil, err
	}
	return []Result{{"pooler", OK, "one in session mode", ""}}, nil
}

// checkNotifications sends a notification from one connection to another, as a release does.
func (c *checker) checkNotifications(ctx context.Context) ([]Result, error) {
	delivered, err := c.deliver(ctx)
	switch {
	case pgtx.SQLState(err) == pgtx.ReadOnlySQLTransaction: // a standby accepts no LISTEN
		return nil, nil
	case err != nil:
		return nil, err
	case !delivered:
		return []Result{{"notifications", Warn, fmt.Sprintf("a notification did not arrive within %v: waiters poll, and get a lock up to a second late", c.Limits.Deliver), pollRemedy}}, nil
	}
	return []Result{{"notifications", OK, "delivered", ""}}, nil
}

// deliver reports whether a notification arrives on a separate connection that listens.
func (c *checker) deliver(ctx context.Context) (bool, error) {
	dialCtx, cancel := context.WithTimeout(ctx, c.Limits.Connect)
	defer cancel()
	listener, err := pgx.ConnectConfig(dialCtx, c.Conn)
	if err != nil {
		return false, err
	}
	defer func() { _ = pgtx.CleanUp(ctx, listener.Close) }()
	channel := "pglock doctor " + rand.Text()
	answerCtx, cancel := context.WithTimeout(ctx, c.Limits.Answer)
	defer cancel()
	if _, err := listener.Exec(answerCtx, "LISTEN "+schema.Quote(channel)); err != nil {
		return false, err
	}
	if _, err := c.conn.Exec(answerCtx, "SELECT pg_catalog.pg_notify($1::text, '')", channel); err != nil {
		return false, err
	}
	deliverCtx, cancel := context.WithTimeout(ctx, c.Limits.Deliver)
	defer cancel()
	_, err = listener.WaitForNotification(deliverCtx)
	return err == nil, ctx.Err() // any failure to receive means that it was not delivered
}

// checkClock compares this machine's clock with the server's.
func (c *checker) checkClock(ctx context.Context) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limits.Answer)
	defer cancel()
	var ahead, uncertain time.Duration // of this machine's clock
	for i := range clockSamples {
		var now time.Time
		began := time.Now()
		if err := c.conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&now); err != nil {
			return nil, err
		}
		half := time.Since(began) / 2
		if i == 0 || half < uncertain {
			ahead, uncertain = began.Add(half).Round(0).Sub(now), half
		}
	}
	return []Result{c.clockResult(ahead, uncertain)}, nil
}

// clockResult judges a difference of the clocks. Leases never compare the two clocks, but ticks of
// package schedule do.
func (c *checker) clockResult(ahead, uncertain time.Duration) Result {
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	const precision, remedy = 100 * time.Microsecond, "synchronize both machines with NTP"
	found := fmt.Sprintf("this machine's clock is %v %s the server's (±%v)", ahead.Abs().Round(precision), direction, uncertain.Round(precision))
	switch {
	case ahead-uncertain > maxAhead:
		return Result{"clock", Fail, found + ": leases do not compare them, but ticks of schedules do, and refuse to run", remedy}
	case ahead.Abs()-uncertain > c.Limits.ClockDifference:
		return Result{"clock", Warn, found + ": leases do not compare them, but ticks of schedules do", remedy}
	}
	return Result{"clock", OK, found + ", jumps between two looks are not seen", ""}
}
