package link

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// errOldServer means that the server has not handed out the tokens that this client has seen.
var errOldServer = errs.Errorf("%w: the server is behind this client's tokens: an old primary that came back, or a copy of one: connect to the current primary, "+
	"or if this is it, set its sequence fencing_tokens above them", errs.ErrUnavailable)

// epochSize is the number of tokens between two promotions: see next_fencing_token.
const epochSize = 1 << 44

// highWater is the highest token that a client has seen. A server that is behind it is not the
// successor of the server that handed that token out.
type highWater struct {
	mu    sync.Mutex
	grant fencing.Fence // guarded by mu; the client's grant with the highest token
	least fencing.Token // guarded by mu; the start of the highest epoch of a server
}

// observeGrant records a grant that the server has made durable, unless a role has forged the token
// of its row: see evidence_bound. With a forged one, the client would refuse each server.
func (n *highWater) observeGrant(name string, token fencing.Token) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if token > n.grant.Token && token < n.least+epochSize/2 {
		n.grant.Name, n.grant.Token = name, token
	}
}

// observeServer records the highest token of a server. Only its epoch counts: a crash may lose the
// rest if it belongs to no grant.
func (n *highWater) observeServer(highest fencing.Token) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.least = max(n.least, highest/epochSize*epochSize)
}

// newest returns the client's highest grant, and the highest token that it knows of.
func (n *highWater) newest() (fencing.Fence, fencing.Token) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grant, max(n.grant.Token, n.least)
}

// rejectOldServers extends the check that pgx makes for each host of a connection string. If the
// server of a host is behind, pgx tries the next host. connect and initConn make all other checks.
func (l *Link) rejectOldServers(next pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if next != nil {
			if err := next(ctx, conn); err != nil {
				return err
			}
		}
		if _, newest := l.highWater.newest(); newest == 0 || schema.IsCockroachDB(conn) {
			return nil
		}
		err := l.checkTokens(ctx, conn)
		if pgtx.SQLState(err) != "" && !ConnectionFailed(err) {
			return nil
		}
		return err
	}
}

// checkTokens makes the server put its tokens in order, and fails if the server is behind what this
// client has seen. It skips standbys. It does not wait for the commit, which precedes that of the
// first grant in the log: connecting must not hang while a synchronous standby is missing.
func (l *Link) checkTokens(ctx context.Context, conn *pgconn.PgConn) error {
	if err := l.prepare(ctx, conn); err != nil {
		return err
	}
	grant, newest := l.highWater.newest()
	name := cmp.Or(grant.Name, backend.PruneLock) // a name that most clients lock now and then
	// The highest token that was handed out, or NULL on a standby. The sequence is put above the
	// tokens of that name's row and of all grants before a failover.
	sql := "SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() " +
		"AND pg_catalog.set_config('synchronous_commit', 'off', true) OPERATOR(pg_catalog.=) 'off' THEN " +
		schema.Quote(l.schema) + ".lift_fencing_tokens($1::text) END"
	var row [][]byte
	var err error
	for range 4 { // a stricter default isolation, and many clients that connect after a failover
		row, err = oneRow(conn.ExecParams(ctx, sql, [][]byte{[]byte(name)}, nil, nil, nil).Read())
		if pgtx.SQLState(err) != pgtx.SerializationFailure {
			break
		}
	}
	if err != nil {
		return err
	}
	if row[0] == nil { // a standby
		return nil
	}
	highest, err := strconv.ParseInt(string(row[0]), 10, 64)
	if err != nil {
		return errs.Errorf("pglock: lift_fencing_tokens: %w", err)
	}
	if fencing.Token(highest) < newest {
		return errs.Errorf("%w: its highest token is %d, this client has seen %d", errOldServer, highest, newest)
	}
	l.highWater.observeServer(fencing.Token(highest))
	return nil
}

// frameKey is the key of a connection's frame in its custom data.
const frameKey = "pglock: frame"

// standbyKey is the key in the custom data of a connection whether its server was a standby at first.
const standbyKey = "pglock: standby"

// OnStandby reports whether the server of a connection is a standby. One of PostgreSQL 13 does not
// say that it was promoted, so that it is one until the connection ends.
func OnStandby(conn *pgconn.PgConn) bool {
	return conn.CustomData()[standbyKey] == true && conn.ParameterStatus("in_hot_standby") != "off"
}

// serverInfo is what a new connection finds.
type serverInfo struct {
	version, oldest   int // of the schema, see schema.Check
	standby, readOnly bool

	// frame is sent before each statement, in one transaction with it. It is empty if the session has
	// the settings that were sent once. A pooler in transaction mode keeps none, and would leave them
	// to other clients.
	frame []string
}

// readServerInfo reads the schema's versions and the state of a server, and makes the settings. A
// pooler lends the session if its process is not the one that the connection was told of, whose number
// is a parameter, so that all connections send one text. The error wraps schema.ErrSchema if locks are
// not safe on the server.
func (l *Link) readServerInfo(ctx context.Context, conn *pgconn.PgConn) (i serverInfo, err error) {
	if err = l.prepare(ctx, conn); err != nil {
		return i, err
	}
	here, setting := schema.Quote(l.schema), "pg_catalog.current_setting('"
	row, err := oneRow(conn.ExecParams(ctx, "SELECT "+here+".pglock_schema_version(), pg_catalog.pg_is_in_recovery(), "+
		setting+"default_transaction_read_only'), "+setting+"default_transaction_isolation')"+
		", "+here+".unsafe_server(), "+here+".pglock_oldest_client(), lent, "+leasetable.Settings("lent")+
		" FROM (SELECT pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.<>) $1::pg_catalog.int8) AS s (lent)",
		[][]byte{strconv.AppendUint(nil, uint64(conn.PID()), 10)}, nil, nil, nil).Read())
	if err != nil {
		return i, err
	}
	if why := row[4]; why != nil {
		return i, schema.Unsafe(string(why))
	}
	lent := string(row[6]) == "t"
	if lent || string(row[3]) != "read committed" {
		i.frame = []string{"BEGIN ISOLATION LEVEL READ COMMITTED"}
	}
	if lent {
		i.frame = append(i.frame, "SELECT "+leasetable.Settings("true"))
	}
	i.standby, i.readOnly = string(row[1]) == "t", string(row[2]) == "on"
	if i.version, err = strconv.Atoi(string(row[0])); err != nil {
		return i, err
	}
	i.oldest, err = strconv.Atoi(string(row[5]))
	return i, err
}

// trustedKey marks a connection in its custom data whose role may call the functions of the schema.
const trustedKey = "pglock: trusted"

// prepare makes a new connection ready for the first function of the schema, unless calling it
// would let another role act as a superuser. It does so once.
func (l *Link) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	if err := normalizeSession(ctx, conn); err != nil || conn.CustomData()[trustedKey] != nil {
		return err
	}
	why, err := schema.Untrusted(ctx, conn, l.schema)
	if err == nil && why != "" {
		err = schema.Unsafe(why)
	}
	if err == nil {
		conn.CustomData()[trustedKey] = true
	}
	return err
}

// readOnlySetBy says where default_transaction_read_only is set, as pg_settings names it. It
// returns nothing if that can't be read.
func readOnlySetBy(ctx context.Context, conn *pgconn.PgConn) string {
	row, err := oneRow(conn.ExecParams(ctx, "SELECT s.source FROM pg_catalog.pg_settings AS s WHERE s.name OPERATOR(pg_catalog.=) 'default_transaction_read_only'", nil, nil, nil, nil).Read())
	if err != nil {
		return ""
	}
	return " (set by: " + string(row[0]) + ")"
}

// normalizeSession undoes settings of the role or the database with which pgx would not use the
// simple protocol or would send names in another encoding. A pooler keeps both settings for each of
// its clients.
func normalizeSession(ctx context.Context, conn *pgconn.PgConn) error {
	for name, want := range map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		if is := conn.ParameterStatus(name); is == want || is == "" {
			continue
		}
		if _, err := conn.Exec(ctx, "SET "+name+" = '"+want+"'").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

var errNoRow = errors.New("pglock: the server returned no row")

// oneRow returns the values of a result's first row as text.
func oneRow(result *pgconn.Result) ([][]byte, error) {
	if result.Err != nil {
		return nil, result.Err
	}
	if len(result.Rows) == 0 {
		return nil, errNoRow
	}
	return result.Rows[0], nil
}
