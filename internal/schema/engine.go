package schema

import (
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
)

// WhyNotCockroachDB says why CheckEngine refuses that server, and the remedy.
const WhyNotCockroachDB = "the server is CockroachDB, on which advisory locks and FOR KEY SHARE lock nothing, " +
	"so that a lock could have two holders: use PostgreSQL"

// IsCockroachDB reports whether conn leads to CockroachDB. It sends nothing.
func IsCockroachDB(conn *pgconn.PgConn) bool { return conn.ParameterStatus("crdb_version") != "" }

// CheckEngine returns an error that wraps ErrSchema if conn leads to CockroachDB, where all statements
// of DoTx succeed and exclude nothing. The function unsafe_server() of the migrations
// finds the other servers on which locks are not safe.
func CheckEngine(conn *pgconn.PgConn) error {
	if !IsCockroachDB(conn) {
		return nil
	}
	return Unsafe(WhyNotCockroachDB)
}

// Unsafe returns an error that wraps ErrSchema and says why locks are not safe on a server.
func Unsafe(why string) error { return errs.Errorf("%w: %s", ErrSchema, why) }
